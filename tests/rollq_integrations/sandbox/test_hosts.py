"""Containers are placed on the hosts that answer, by engines that only say that they do."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rollq.errors import ServiceAway
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
