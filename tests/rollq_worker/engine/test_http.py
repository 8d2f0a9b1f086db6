"""The connections to an engine: garbage instead of HTTP, idle connections, waits that end."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from rollq.errors import EngineFailure
from rollq_worker.engine import http, sglang_client
from rollq_worker.engine.http import EngineHttp
from rollq_worker.engine.sglang_client import RETRIES, SGLangEngine
from rollq_worker.http_client import NoResponse
from tests.rollq_worker.engine.clients import KEY, Connect, generate
from tests.rollq_worker.engine.engine_servers import good_reply, scripted_engine

READY = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def raw_server(answer: bytes) -> Iterator[str]:
    """A server that answers every POST with these bytes and hangs up, and every GET well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with suppress(TimeoutError, OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(30)
                        post = connection.recv(1 << 16).startswith(b"POST")
                        connection.sendall(answer if post else READY)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


GARBAGE = [
    b"",
    b"\x00\xff" * 100,
    b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
]


@pytest.mark.parametrize("answer", GARBAGE, ids=lambda answer: repr(answer[:60]))
def test_garbage_instead_of_http_is_a_failure_of_the_engine(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(sglang_client, "CONNECTION_LOST_BACKOFF_S", (0.0, 0.0))
    with (
        raw_server(answer) as url,
        pytest.raises(EngineFailure, match=rf"{KEY}: .* {RETRIES + 1} times in a row"),
    ):
        generate(connect(url))


def open_sockets(client: SGLangEngine) -> int:
    pools = client._http._adapter.poolmanager.pools
    queues = [pools[key].pool for key in pools.keys()]  # noqa: SIM118
    kept = sum(connection.sock is not None for queue in queues for connection in queue.queue if connection)
    return kept + len(client._http._plain._idle if client._http._plain else ())


BODY = (b'{"input_ids": [1],', b' "rid": "rid"}')


def test_no_thread_waits_after_its_response() -> None:
    """Its socket may be another thread's by then."""
    with scripted_engine("reset", (500, b""), good_reply) as engine:
        http = EngineHttp(engine.url, 1)
        request = http.in_flight.add("rid", KEY)
        for _ in range(3):
            with suppress(NoResponse):
                http.post("/generate", b"".join(BODY), timeout_s=60.0)
            assert request.sock is None and http.in_flight.cut(None, hung=True) == 0
        http.close()


@pytest.mark.parametrize("routing_key", ["run/group", ""], ids=["plain", "requests"])
def test_a_generation_is_in_flight_until_its_answer(routing_key: str) -> None:
    seen: list[bool] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        seen.append(http.in_flight.rids() == ["rid"])
        return good_reply(body)

    with scripted_engine("reset", (500, b""), answer, answer) as engine:
        http = EngineHttp(engine.url, 1)
        for _ in range(4):
            with suppress(NoResponse):
                http.generate("/generate", BODY, rid="rid", key=KEY, routing_key=routing_key)
            assert http.in_flight.rids() == [] and http.in_flight.cut(None, hung=True) == 0
        http.close()
    assert seen == [True, True]


def test_a_quiet_client_keeps_no_connections(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_IDLE_S", 1000.0)
    together = threading.Barrier(6, timeout=60)

    def at_once(body: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        return good_reply(body)

    with scripted_engine(*[at_once] * 6) as engine:
        client = connect(engine)
        threads = [threading.Thread(target=generate, args=(client,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert open_sockets(client) == 7  # one was asked for the limits
        client.close_idle_connections()
        assert open_sockets(client) == 7  # they were used just now
        monkeypatch.setattr(http, "MAX_IDLE_S", 0.0)
        client.close_idle_connections()
        assert open_sockets(client) == 0
        generate(client)


def test_a_connection_that_lay_idle_is_not_used_again(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_IDLE_S", 1000.0)
    ports: list[int] = []
    with scripted_engine(ready=(200, {})) as engine:
        client = connect(engine)
        monkeypatch.setattr(client._in_flight, "wait_on", lambda sock: sock and ports.append(sock.getsockname()[1]))
        assert client.ready() and client.ready()
        monkeypatch.setattr(http, "MAX_IDLE_S", 0.0)
        assert client.ready()
    assert ports[0] == ports[1] != ports[2]
