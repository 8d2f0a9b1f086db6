"""The connections to an engine: garbage instead of HTTP, what is used again, waits that end."""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import EngineFailure
from rollq_worker.engine import client as engine_client
from rollq_worker.engine.client import RETRIES
from rollq_worker.engine.exchange import http
from rollq_worker.engine.exchange.http import EngineConnections, EngineHttp, WaitCut
from rollq_worker.remote.http_client import ConnectFailed, NoResponse, Response, ResponseTimeout
from tests.rollq_worker.engine.clients import KEY, Connect, generate
from tests.rollq_worker.engine.engine_servers import good_reply, scripted_engine
from tests.waiting import until

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
    b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"200 OK\r\n\r\n{}",
]


@pytest.mark.parametrize("answer", GARBAGE, ids=lambda answer: repr(answer[:60]))
def test_garbage_instead_of_http_is_a_failure_of_the_engine(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(engine_client, "CONNECTION_LOST_BACKOFF_S", (0.0, 0.0))
    with (
        raw_server(answer) as url,
        pytest.raises(EngineFailure, match=rf"(?s){KEY}: .* {RETRIES + 1} times in a row"),
    ):
        generate(connect(url))


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def send(http: EngineHttp) -> Response:
    return http.generate(
        "/generate",
        b'{"input_ids": [1], "rid": "rid"}',
        rid="rid",
        key=KEY,
        routing_key="run/group",
    )


def test_a_generation_is_in_flight_until_its_answer() -> None:
    """Its socket may be another thread's after that."""
    seen: list[bool] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        seen.append(http.in_flight.rids() == ["rid"])
        return good_reply(body)

    with scripted_engine("reset", (500, b""), answer, answer) as engine:
        http = EngineHttp(engine.url)
        for _ in range(4):
            with suppress(NoResponse):
                send(http)
            assert http.in_flight.rids() == [] and http.in_flight.cut(None, hung=True) == 0
        http.close()
    assert seen == [True, True]


def test_a_request_that_still_connects_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine hangs: its backlog is full, then a connection is made, and nothing is ever
    accepted or answered.
    """
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 30.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as waiting:
        address = listener.getsockname()
        waiting.enter_context(socket.create_connection(address))
        waits, ended = EngineHttp(f"http://127.0.0.1:{address[1]}"), list[BaseException]()

        def wait() -> None:
            try:
                send(waits)
            except BaseException as e:
                ended.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: waits.in_flight.rids())
        assert waits.in_flight.cut(KEY, hung=True) == 1
        listener.accept()[
            0
        ].close()  # there is room: the kernel completes the connection when it asks again
        thread.join(10)
        assert not thread.is_alive() and isinstance(ended[0], WaitCut) and ended[0].hung
        assert waits.in_flight.rids() == []


def test_a_quiet_client_keeps_no_connections(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not more than it has requests at once, either."""
    monkeypatch.setattr(http, "MAX_IDLE_S", 1000.0)
    together = threading.Barrier(6, timeout=60)

    def at_once(body: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        return good_reply(body)

    with scripted_engine(*[at_once] * 12) as engine:
        client = connect(engine)
        for _ in range(2):
            threads = [threading.Thread(target=generate, args=(client,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        until(lambda: len(engine.connections) == 6)
        client.close_idle_connections()  # they were used just now
        generate(client)
        assert len(engine.connections) == 6
        monkeypatch.setattr(http, "MAX_IDLE_S", 0.0)
        client.close_idle_connections()
        until(lambda: not engine.connections)
        generate(client)


def test_the_connection_that_was_used_last_is_used_next() -> None:
    with scripted_engine() as engine:
        kept = EngineConnections(engine.url, 300)
        first, second = kept.take(), kept.take()
        kept.give_back(first, True)
        kept.give_back(second, True)
        assert kept.take() is second and kept.take() is first
        kept.give_back(first, False)
        kept.close()
        kept.give_back(second, True)
        assert first.sock is second.sock is None


def test_a_connection_that_lay_idle_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_IDLE_S", -1.0)
    with scripted_engine() as engine:
        kept = EngineConnections(engine.url, 300)
        idle = kept.take()
        kept.give_back(idle, True)
        other = kept.take()
        assert other is not idle and idle.sock is None
        other.close()


@contextmanager
def accepted(
    timeout_s: float = 60.0, prefix: str = ""
) -> Iterator[tuple[Callable[..., Any], EngineConnections, HTTPConnection, socket.socket]]:
    """What posts a body over an open connection, what it came from, that connection, and its other
    end.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}{prefix}"
        kept = EngineConnections(url, 300)
        connection = kept.take()
        with server.accept()[0] as there:
            there.settimeout(60)
            post = partial(
                kept.exchange,
                connection,
                "POST",
                "/generate",
                headers={"X": "y"},
                timeout_s=timeout_s,
            )
            yield post, kept, connection, there
        connection.close()


@pytest.mark.parametrize("surplus", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["closed", "said more"])
def test_a_connection_on_which_the_server_did_something_is_not_used(surplus: bytes) -> None:
    with accepted() as (post, kept, connection, there):
        there.sendall(OK)
        assert post(b"{}") == (Response(200, b"{}"), True)
        there.sendall(surplus)
        there.shutdown(socket.SHUT_WR)
        assert select.select([connection.sock], [], [], 10)[0]
        kept.give_back(connection, True)
        other = kept.take()
        assert other is not connection and connection.sock is None
        other.close()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (OK, (Response(200, b"{}"), True)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            (Response(200, b"{}"), True),
        ),
        (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
            (Response(200, b"{}"), False),
        ),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", (Response(200, b"{}"), False)),
        # The answer itself may come after another status, and would be taken for that to the next
        # request.
        (
            b"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}",
            (Response(503, b"{}", "3"), False),
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n" + b"x" * 400,
            (Response(200, b"x" * 400), False),
        ),
    ],
)
def test_what_an_answer_says_of_its_connection(answer: bytes, found: tuple[Response, bool]) -> None:
    with accepted() as (post, _, _, there):
        there.sendall(answer)
        assert post(b"{}") == found


@pytest.mark.parametrize(
    "half",
    [b"Content-Length: 9\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n9\r\n{}"],
    ids=["length", "chunk"],
)
def test_half_an_answer_is_none(half: bytes) -> None:
    with accepted() as (post, _, _, there), pytest.raises(NoResponse, match="IncompleteRead"):
        there.sendall(b"HTTP/1.1 200 OK\r\n" + half)
        there.shutdown(socket.SHUT_WR)
        post(b"{}")


@pytest.mark.parametrize(
    "came", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 503 Busy\r\n\r\n"]
)
def test_an_answer_that_does_not_come_in_time(came: bytes) -> None:
    with accepted(0.05) as (post, _, _, there), pytest.raises(ResponseTimeout):
        there.sendall(came)
        post(b"{}")


def test_a_large_body_arrives() -> None:
    whole = b"x" * 3_000_000 + b"y"
    arrived = bytearray()
    with accepted(prefix="/engine/") as (post, _, connection, there):

        def serve() -> None:
            while not arrived.endswith(b"y"):
                arrived.extend(there.recv(1 << 16))
            there.sendall(OK)

        thread = threading.Thread(target=serve)
        thread.start()
        assert post(whole) == (Response(200, b"{}"), True)
        thread.join()
    head, _, body = bytes(arrived).partition(b"\r\n\r\n")
    assert body == whole and head.startswith(b"POST /engine/generate HTTP/1.1\r\n")
    host = f"Host: 127.0.0.1:{connection.port}".encode()
    assert {host, b"X: y", b"Content-Length: %d" % len(whole)} <= set(head.split(b"\r\n"))


def test_what_a_server_says_before_it_has_read_the_whole_request() -> None:
    """It closes with the rest unread, which resets the connection."""
    with accepted() as (post, _, connection, there):
        connection.sock.sendall(b"POST /generate HTTP/1.1\r\n")
        assert there.recv(1, socket.MSG_PEEK)
        there.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
        there.close()
        assert post(b"{}") == (Response(503, b"busy"), False)


@pytest.mark.packages
def test_an_authority_of_ones_own_is_named_by_ssl_cert_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with (
                suppress(OSError),
                context.wrap_socket(listener.accept()[0], server_side=True) as one,
            ):
                one.recv(1 << 16)
                one.sendall(READY)

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        engine = EngineHttp(f"https://127.0.0.1:{listener.getsockname()[1]}")
        assert engine.get("/ready", timeout_s=30).status == 200
        thread.join()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_error_holds_a_secret(scheme: str) -> None:
    with pytest.raises(NoResponse) as caught:
        send(EngineHttp(f"{scheme}://user:secret@127.0.0.1:1"))
    assert (
        "secret" not in str(caught.value)
        and caught.value.__cause__ is caught.value.__context__ is None
    )


def test_an_address_without_a_server_is_a_failed_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECT_TIMEOUT_S", 0.2)
    for host in ("127.0.0.1", "no-such-host.invalid", "[::1]"):
        with pytest.raises(ConnectFailed) as caught:
            send(EngineHttp(f"http://{host}:9"))
        assert ("gaierror" in str(caught.value)) == (host == "no-such-host.invalid")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://[::1]:30000", ("::1", 30000)),
        ("http://[::1]/engine", ("::1", 80)),
        ("https://[::1]", ("::1", 443)),
        ("https://gpu-1", ("gpu-1", 443)),
    ],
)
def test_where_it_connects(
    url: str, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = []

    def refuse(address: tuple[str, int], *of: Any) -> Any:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConnectFailed):
        send(EngineHttp(url))
    assert connected == [address]


def test_a_login_is_sent(connect: Connect) -> None:
    with scripted_engine() as engine:
        generate(connect(engine.url.replace("//", "//user:p%40ss@")))
        assert {headers["Authorization"] for _, _, headers in engine.requests} == {
            "Basic dXNlcjpwQHNz"
        }
