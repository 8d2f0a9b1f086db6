"""The container engine of this machine, Docker or Podman, by the package docker.

`DOCKER_HOST` names its socket where it is not Docker's own. Refusals of the engine or the package
become an EnvironmentFailure. It does not know the purpose of a container.
"""

import tarfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rollq.errors import EnvironmentFailure, JobFailure
from rollq.pip_extras import install_line

if TYPE_CHECKING:
    import docker

LABEL = "rollq.sandbox"
"""The label of every container of a sandbox."""
TIMEOUT_S = 60.0
"""Seconds in which the engine must answer, but for builds and commands."""
CONNECTIONS = 256
"""Number of connections that are kept."""
REMEDY = "is Docker or Podman's service running, and does DOCKER_HOST name its socket?"
_building: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


@cache
def engine() -> "docker.DockerClient":
    """The engine, for all threads of this process. JobFailure where there is none."""
    try:
        import docker
    except ImportError as e:
        raise JobFailure(f"containers need the package docker: {install_line('containers')}") from e
    try:
        client = docker.from_env(timeout=TIMEOUT_S, max_pool_size=CONNECTIONS)
        client.ping()
    except docker.errors.DockerException as e:
        raise JobFailure(f"no container engine answers: {e}; {REMEDY}") from e
    return client


def sweep(age: str = "2m") -> None:
    """Remove the sandboxes' containers of that age that never ran: a worker was killed between
    making and starting one. Those that run end by themselves (`container`).
    """
    engine().containers.prune(filters={"label": LABEL, "until": age})


@contextmanager
def failures(what: str) -> Iterator[None]:
    """A block in which refusals of the engine, or its silence, are an EnvironmentFailure that names
    `what` was done. A FileNotFoundError stays one.
    """
    import docker
    import urllib3

    try:
        yield
    except FileNotFoundError:
        raise
    except docker.errors.BuildError as e:
        lines = [line.get("stream") or line.get("error") or "" for line in e.build_log]
        log = "".join(map(str, lines))
        raise EnvironmentFailure(f"{what}: {e}; its log ends with:\n{log.strip()[-2000:]}") from e
    # Those of requests are OSErrors. The streams of builds, and damaged archives, have errors of
    # their own.
    except (
        docker.errors.DockerException,
        urllib3.exceptions.HTTPError,
        tarfile.TarError,
        OSError,
    ) as e:
        raise EnvironmentFailure(f"{what}: {e}") from e


def image_of(folder: Path, tag: str, seconds: float) -> None:
    """Have the engine build the image of a folder with a Dockerfile, unless it has one of that tag.
    Where several threads ask for one, it is built once. Raises EnvironmentFailure.
    """
    import docker

    with _building[tag], failures(f"the image {tag} of {folder}"):
        try:
            engine().images.get(tag)
        except docker.errors.ImageNotFound:
            engine().images.build(
                path=str(folder),
                tag=tag,
                rm=True,
                forcerm=True,
                timeout=int(seconds),
            )


def pull(image: str) -> None:
    """Have the engine fetch an image that it lacks. Raises EnvironmentFailure."""
    import docker

    with _building[image], failures(f"the image {image}"):
        try:
            engine().images.get(image)
        except docker.errors.ImageNotFound:
            engine().images.pull(image)
