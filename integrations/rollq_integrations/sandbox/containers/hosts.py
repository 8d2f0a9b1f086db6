"""The hosts whose container engines, Docker or Podman, run sandboxes, by the package docker.

`ROLLQ_SANDBOX_HOSTS` lists their addresses. Without it there is one, that of `DOCKER_HOST` or
Docker's own socket. A container goes to the host that has the fewest of this process's. A host
whose engine does not answer is passed over; where none does, the engines are waited for
(ServiceAway). It does not know the purpose of a container.
"""

import os
import random
import time
from functools import cache, cached_property
from typing import TYPE_CHECKING

from rollq.env import mask_url
from rollq.errors import ForOtherWorkers, JobFailure, ServiceAway
from rollq.pip_extras import install_line
from rollq_integrations.sandbox.containers.tunnel import SCHEME, Tunnel

if TYPE_CHECKING:
    import docker

HOSTS = "ROLLQ_SANDBOX_HOSTS"
"""Environment variable of the worker: the addresses of container engines, with commas between."""
TIMEOUT_S = 60.0
"""Seconds in which an engine must answer, but for builds and commands."""
PING_S = 10.0
"""Seconds in which an engine must answer before a container is placed there."""
AWAY_S = 20.0
"""Seconds for which an engine that did not answer is asked last."""
CONNECTIONS = 256
"""Number of connections that are kept."""
REMEDY = "is Docker or Podman's service running, and does {} name its address?"


class Host:
    """The engine at one address, and this process's containers there."""

    def __init__(self, address: str) -> None:
        self.containers: set[object] = set()
        self.problem = ""
        self._name = mask_url(address) or "Docker's own socket"
        self._tunnel = Tunnel(address) if address.startswith(SCHEME) else None
        self._address = self._tunnel.address if self._tunnel else address
        self._away_until = 0.0
        self._clients: list[docker.DockerClient] = []

    def __str__(self) -> str:
        return self._name

    @cached_property
    def client(self) -> "docker.DockerClient":
        """The client of the engine, for all threads of this process."""
        return self._client(TIMEOUT_S)

    @cached_property
    def _pings(self) -> "docker.DockerClient":
        return self._client(PING_S)

    def _client(self, timeout_s: float) -> "docker.DockerClient":
        import docker

        settings = {**os.environ, "DOCKER_HOST": self._address} if self._address else None
        client = docker.from_env(environment=settings, timeout=timeout_s, max_pool_size=CONNECTIONS)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Closes the connections."""
        for client in self._clients:
            client.close()
        if self._tunnel:
            self._tunnel.close()

    def order(self) -> tuple[bool, int, float]:
        """Sorts hosts: those that answered first, and of these those with the fewest containers."""
        return time.monotonic() < self._away_until, len(self.containers), random.random()

    def answers(self) -> bool:
        """True if the engine answers now, and `client` is there."""
        import docker
        import requests

        try:
            if self._tunnel:
                self._tunnel.open()
            self._pings.ping()
            _ = self.client  # it asks for a version, and a failure to do so is none of a container
        except (docker.errors.DockerException, requests.RequestException, OSError) as e:
            self.problem = str(e)
            self._away_until = time.monotonic() + AWAY_S
            return False
        self._away_until = 0.0
        return True


@cache
def host_at(address: str) -> Host:
    return Host(address)


def hosts() -> list[Host]:
    """The hosts of this worker. Raises JobFailure where the package docker is missing, and
    ForOtherWorkers where an address is none.
    """
    try:
        import docker  # noqa: F401
    except ImportError as e:
        raise JobFailure(f"containers need the package docker: {install_line('containers')}") from e
    listed = os.environ.get(HOSTS) or os.environ.get("DOCKER_HOST", "")
    addresses = [address.strip() for address in listed.split(",") if address.strip()]
    try:
        return [host_at(address) for address in addresses or [""]]
    except ValueError as e:  # its port
        raise ForOtherWorkers(f"the addresses of container engines, {_variable()}: {e}") from e


def place(container: object) -> Host:
    """The host with the fewest containers, which has just answered, with this one among its
    `containers`. Raises ServiceAway where none answers.
    """
    every_host = hosts()
    for host in sorted(every_host, key=Host.order):
        if host.answers():
            host.containers.add(container)
            return host
    problems = "; ".join(f"at {host} does not answer: {host.problem}" for host in every_host)
    raise ServiceAway(f"the container engine {problems}; {REMEDY.format(_variable())}")


def _variable() -> str:
    return HOSTS if os.environ.get(HOSTS) else "DOCKER_HOST"
