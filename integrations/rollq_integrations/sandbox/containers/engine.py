"""The container engine of this machine, Docker or Podman, by the package docker.

`DOCKER_HOST` names its socket where it is not Docker's own. An engine that does not answer is
waited for (ServiceAway). One that goes away in the middle of a call is a WorkerFailure, and a
refusal of the engine is an EnvironmentFailure. It does not know the purpose of a container.
"""

import os
import secrets
import socket
import tarfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rollq.errors import EnvironmentFailure, JobFailure, ServiceAway, WorkerFailure
from rollq.pip_extras import install_line

if TYPE_CHECKING:
    import docker

LABEL = "rollq.sandbox"
"""The label of every container of a sandbox."""
WORKER_LABEL = "rollq.worker"
"""The label with the process that made it: machine, namespace of pids, pid, and a word that no
other process has.
"""
TIMEOUT_S = 60.0
"""Seconds in which the engine must answer, but for builds and commands."""
CONNECTIONS = 256
"""Number of connections that are kept."""
REMEDY = "is Docker or Podman's service running, and does DOCKER_HOST name its socket?"
LOG_LINES = 40
"""Number of lines of a build's log that a failure shows at most."""
_building: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_word = secrets.token_hex(4)


@cache
def client() -> "docker.DockerClient":
    """The client of the engine, for all threads of this process."""
    import docker

    return docker.from_env(timeout=TIMEOUT_S, max_pool_size=CONNECTIONS)


def engine() -> "docker.DockerClient":
    """The engine, which has just answered. Raises ServiceAway where none does."""
    try:
        import docker
        import requests
    except ImportError as e:
        raise JobFailure(f"containers need the package docker: {install_line('containers')}") from e
    try:
        client().ping()
    except (docker.errors.DockerException, requests.RequestException) as e:
        where = os.environ.get("DOCKER_HOST", "Docker's own socket")
        raise ServiceAway(f"the container engine at {where} does not answer: {e}; {REMEDY}") from e
    return client()


def this_worker() -> str:
    return f"{_machine()} {os.getpid()} {_word}"


def _machine() -> str:
    """Where a pid means one process. Containers in the machine's network have its name."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def sweep(age: str = "2m") -> None:
    """Remove the sandboxes' containers of that age that never ran: a worker was killed between
    making and starting one. Those that run end by themselves (`lease`), but for the policy's tricks
    against it: those whose worker was on this machine and has gone are removed, too.
    """
    containers = engine().containers
    containers.prune(filters={"label": LABEL, "until": age})
    for container in containers.list(filters={"label": LABEL}, sparse=True):
        if _is_orphan(container.attrs["Labels"].get(WORKER_LABEL, "")):
            with suppress(EnvironmentFailure), failures("removing a container"):
                container.remove(force=True)


def _is_orphan(worker: str) -> bool:
    host, _, process = worker.rpartition(" ")[0].rpartition(" ")
    if host != _machine():
        return False
    if int(process) == os.getpid():
        return worker != this_worker()
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


@contextmanager
def failures(what: str) -> Iterator[None]:
    """A block in which errors of the engine become a failure that names `what` was done: a
    WorkerFailure where it stopped answering, an EnvironmentFailure where it refused. A
    FileNotFoundError stays one.
    """
    import docker
    import requests
    import urllib3

    try:
        yield
    except FileNotFoundError:
        raise
    # Refusals are errors of requests, too, and those are OSErrors.
    except (docker.errors.DockerException, tarfile.TarError) as e:
        raise EnvironmentFailure(f"{what}: {e}") from e
    except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError) as e:
        raise WorkerFailure(f"{what}: the container engine went away: {e}") from e
    except OSError as e:
        raise EnvironmentFailure(f"{what}: {e}") from e


def image_of(folder: Path, tag: str, seconds: float) -> None:
    """Have the engine build the image of a folder with a Dockerfile, unless it has one of that tag.
    Where several threads ask for one, it is built once. Raises EnvironmentFailure, also for a build
    that writes on after so many seconds, or is silent for as long.
    """
    import docker

    with _building[tag], failures(f"the image {tag} of {folder}"):
        try:
            engine().images.get(tag)
        except docker.errors.ImageNotFound:
            _build(folder, tag, seconds)


def _build(folder: Path, tag: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    log: deque[str] = deque(maxlen=LOG_LINES)
    lines = engine().api.build(
        path=str(folder), tag=tag, rm=True, forcerm=True, timeout=int(seconds) + 1, decode=True
    )
    for line in lines:
        problem = line.get("error", "")
        log.append(line.get("stream") or problem)
        if time.monotonic() > until:
            problem = f"its build took longer than {seconds:g} s"
        if problem:
            text = "".join(log).strip()[-2000:]
            raise EnvironmentFailure(
                f"the image {tag} of {folder}: {problem}; its log ends with:\n{text}"
            )


def pull(image: str) -> None:
    """Have the engine fetch an image that it lacks. Raises EnvironmentFailure."""
    import docker

    with _building[image], failures(f"the image {image}"):
        try:
            engine().images.get(image)
        except docker.errors.ImageNotFound:
            engine().images.pull(image)
