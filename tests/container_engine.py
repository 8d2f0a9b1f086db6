"""The container engine of the tests: that of DOCKER_HOST, Docker's own, or Podman's service,
started for them.
"""

import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollq_integrations.sandbox.containers.engine import LABEL, sweep
from rollq_integrations.sandbox.containers.hosts import host_at, hosts
from tests.conftest import free_port
from tests.waiting import until

IMAGE = os.environ.get("ROLLQ_TEST_IMAGE", "docker.io/library/python:3.11-slim")

UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""The package docker leaves its sockets to the collector of garbage."""


@contextmanager
def served() -> Iterator[None]:
    """A block in which DOCKER_HOST names an engine that has IMAGE."""
    with _served():
        yield
        for host in hosts():
            host.close()
        host_at.cache_clear()
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
    command = ["podman", "system", "service", "--time=0", f"unix://{socket}"]
    service = subprocess.Popen(command, cwd=socket.parent)  # where it notes what ran out of memory
    until(socket.exists, 60)
    return service


@contextmanager
def other_host() -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """An engine of its own with this machine's images, at an address on loopback, as if it were on
    another host: all of its processes die with the one that is given.
    """
    store = subprocess.run(
        ["podman", "info", "--format", "{{.Store.GraphRoot}}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        address = f"tcp://127.0.0.1:{free_port()}"
        own = ["--root", f"{folder}/root", "--runroot", f"{folder}/run"]
        images = ["--storage-opt", f"additionalimagestore={store}"]
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
        host = subprocess.Popen(
            [*apart, "podman", *own, *images, "system", "service", "--time=0", address]
        )
        until(host_at(address).answers, 60)
        try:
            yield address, host
        finally:
            host.kill()
            host.wait(60)
            subprocess.run(
                ["podman", *own, "rm", "--all", "--force"], capture_output=True, check=False
            )
            subprocess.run(
                ["umount", "-R", f"{folder}/root/overlay"], capture_output=True, check=False
            )


def containers(**labels: str) -> list[str]:
    """The ids of sandboxes' containers with these labels, also of those that do not run, but for
    those that a worker would sweep away in two minutes.
    """
    sweep("5s")
    wanted = [LABEL, *(f"rollq.{name}={value}" for name, value in labels.items())]
    return [
        found.id
        for host in hosts()
        if host.answers()
        for found in host.client.containers.list(all=True, filters={"label": wanted}, sparse=True)
    ]
