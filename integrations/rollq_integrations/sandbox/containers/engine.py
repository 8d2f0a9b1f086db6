"""Errors of container engines as failures, and the containers that nobody will remove.

An engine that goes away in the middle of a call is a WorkerFailure, and a refusal of the engine is
an EnvironmentFailure. It does not know the purpose of a container.
"""

import os
import secrets
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rollq.errors import EnvironmentFailure, RollqError, WorkerFailure
from rollq_integrations.sandbox.containers.hosts import hosts

if TYPE_CHECKING:
    import docker

LABEL = "rollq.sandbox"
"""The label of every container of a sandbox."""
WORKER_LABEL = "rollq.worker"
"""The label with the process that made it: machine, namespace of pids, pid, and a word that no
other process has.
"""
_word = secrets.token_hex(4)


def this_worker() -> str:
    return f"{_machine()} {os.getpid()} {_word}"


def _machine() -> str:
    """Name of the PID namespace of this machine, in which a pid is one process. Containers in the
    machine's network have its name, too.
    """
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def sweep(age: str = "2m") -> None:
    """Removes the sandboxes' containers of that age that never ran, from every host: a worker was
    killed between making and starting one. Those that run end by themselves (`lease`), but for the
    policy's tricks against it: those whose worker was on this machine and has gone are removed,
    too.
    """
    for host in hosts():
        if host.answers():
            with suppress(RollqError), failures(f"removing containers at {host}"):
                _sweep(host.client, age)


def _sweep(engine: "docker.DockerClient", age: str) -> None:
    containers = engine.containers
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
