"""Containers are placed on the hosts that answer, by engines that only say that they do."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from rollq.errors import EnvironmentFailure, ForOtherWorkers, ServiceAway
from rollq_integrations.sandbox import Container
from rollq_integrations.sandbox.containers import container as container_module
from rollq_integrations.sandbox.containers.hosts import Host, host_at, hosts, place
from tests import container_engine
from tests.conftest import free_port

pytestmark = container_engine.UNCLOSED


@contextmanager
def engine(versions: int = 1000) -> Iterator[str]:
    """The address of an engine that is asked so many times for its version, and then hangs up."""

    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal versions
            versions -= self.path.endswith("/version")
            if versions < 0:
                return
            body = b'{"ApiVersion": "1.41"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.delenv("ROLLQ_SANDBOX_HOSTS", raising=False)
    with ExitStack() as stack:
        yield stack
        for host in hosts():
            host.close()
    host_at.cache_clear()


def places(number: int) -> list[Host]:
    return [place(object()) for _ in range(number)]


def test_a_container_goes_to_the_host_with_the_fewest(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [stack.enter_context(engine()) for _ in range(3)]
    monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", ", ".join(addresses))
    places(9)
    first, second, _ = hosts()
    assert [len(host.containers) for host in hosts()] == [3, 3, 3]
    first.containers.clear()
    second.containers.pop()
    assert set(places(2)) == {first} and set(places(2)) == {first, second}


@pytest.mark.parametrize(
    ("addresses", "says"),
    [
        ("ssh://me@there:2x/engine", "container engines, ROLLQ_SANDBOX_HOSTS: Port could not .*2x"),
        ("tcp://127.0.0.1:1,ssh://there:99999", "ROLLQ_SANDBOX_HOSTS: Port out of range"),
    ],
)
def test_what_is_no_address(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, addresses: str, says: str
) -> None:
    with monkeypatch.context() as wrong:
        wrong.setenv("ROLLQ_SANDBOX_HOSTS", addresses)
        with pytest.raises(ForOtherWorkers, match=says):
            hosts()
    monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", "tcp://127.0.0.1:1, ")
    assert [str(host) for host in hosts()] == ["tcp://127.0.0.1:1"]


def test_a_service_shares_the_network_of_its_container(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's package takes `network` before the mode."""
    host = host_at(stack.enter_context(engine()))
    monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", str(host))
    monkeypatch.setenv("ROLLQ_SANDBOX_NETWORK", "inside")
    monkeypatch.setattr(container_module, "have_image", lambda *_: None)
    monkeypatch.setattr(container_module, "_is_internal", lambda *_: True)
    monkeypatch.setattr(container_module, "_service", lambda *_: ["sh"])
    created: list[str] = []

    def create(config: Any, *_: object) -> None:
        created.append(config["HostConfig"]["NetworkMode"])
        raise APIError("no more is needed")

    monkeypatch.setattr(host.client.api, "create_container_from_config", create)
    with Container("x") as main, pytest.raises(EnvironmentFailure, match="no more"):
        main.run(["true"])
    main._started = Future()
    main._started.set_result(SimpleNamespace(id="main"))
    with Container("x", beside=main) as service, pytest.raises(EnvironmentFailure):
        service.run(["true"])
    assert created == ["inside", "container:main"]


def test_a_host_that_is_away_is_passed_over(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, gone = stack.enter_context(engine()), f"tcp://127.0.0.1:{free_port()}"
    monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", f"{gone},{here}")
    assert set(places(4)) == {host_at(here)}
    monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", f"{gone},tcp://127.0.0.1:{free_port()}")
    with pytest.raises(ServiceAway, match=rf"engine at {gone} does not answer: .*; at tcp.* not"):
        places(1)


def test_an_engine_that_goes_away_before_a_container_is_placed_is_waited_for(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", stack.enter_context(engine(versions=1)))
    with pytest.raises(ServiceAway, match="does DOCKER_HOST name its address"):
        places(1)


def test_an_empty_entry_is_no_host(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", "tcp://a:1,, tcp://b:2,")
    assert [str(host) for host in hosts()] == ["tcp://a:1", "tcp://b:2"]
