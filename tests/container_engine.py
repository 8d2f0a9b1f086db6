"""The container engine of the tests: that of DOCKER_HOST, Docker's own, or Podman's service,
started for them.
"""

import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rollq.errors import EnvironmentFailure
from rollq_integrations.sandbox.containers.engine import LABEL, client, engine, failures, sweep
from tests.waiting import until

IMAGE = os.environ.get("ROLLQ_TEST_IMAGE", "docker.io/library/python:3.11-slim")

UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""The package docker leaves its sockets to the collector of garbage."""


@contextmanager
def served() -> Iterator[None]:
    """A block in which DOCKER_HOST names an engine that has IMAGE."""
    with _served():
        yield
        client().close()
        client.cache_clear()
        gc.collect()


@contextmanager
def _served() -> Iterator[None]:
    if (
        os.environ.get("DOCKER_HOST")
        or Path("/var/run/docker.sock").exists()
        or not shutil.which("podman")
    ):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "engine.sock")
        service = podman(socket)
        os.environ["DOCKER_HOST"] = f"unix://{socket}"
        try:
            yield
        finally:
            del os.environ["DOCKER_HOST"]
            service.terminate()
            service.wait(60)


def podman(socket: Path) -> "subprocess.Popen[bytes]":
    """Podman's service at this socket."""
    service = subprocess.Popen(["podman", "system", "service", "--time=0", f"unix://{socket}"])
    until(socket.exists, 60)
    return service


def containers(**labels: str) -> list[str]:
    """The ids of sandboxes' containers with these labels, also of those that do not run, but for
    those that a worker would sweep away in two minutes.
    """
    with (
        suppress(EnvironmentFailure),
        failures("removing containers"),
    ):  # Podman fails where one just ends by itself
        sweep("5s")
    wanted = [LABEL, *(f"rollq.{name}={value}" for name, value in labels.items())]
    return [
        found.id
        for found in engine().containers.list(all=True, filters={"label": wanted}, sparse=True)
    ]
