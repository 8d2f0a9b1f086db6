"""The plain case of HTTP says what urllib3 says, whatever a server answers and however the bytes come."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.events import Finish
from rollq.servers.sockets import is_silent
from rollq_worker.engine import http
from rollq_worker.engine.http import EngineHttp
from rollq_worker.engine.plain_http import FIRST_READ, PlainHttp
from rollq_worker.http_client import ConnectFailed, NoResponse, Response, ResponseTimeout
from tests.rollq_worker.engine.clients import Connect, generate
from tests.rollq_worker.engine.engine_servers import good_reply, scripted_engine
from tests.waiting import until

MOST = 300
GROUP = ("X-SMG-Routing-Key", "run/group")


class SlowSocket(socket.socket):
    """A socket that gives a few bytes at a time, and at first so many."""

    first = most = FIRST_READ

    def recv(self, size: int, flags: int = 0) -> bytes:
        most, self.first = self.first, self.most
        return super().recv(min(size, most), flags)

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        return super().recv_into(buffer, min(size or len(buffer), self.most), flags)


def client(timeout_s: float = 60.0, host: str = "host", port: int = 80, prefix: str = "") -> PlainHttp:
    return PlainHttp(host, port, prefix, {}, max_bytes=MOST, connect_timeout_s=3.0, timeout_s=timeout_s)


@contextmanager
def answered(answer: bytes, first: int, most: int) -> Iterator[SlowSocket]:
    """A connection to a server that gives this answer and hangs up."""
    here, there = socket.socketpair()
    with there, SlowSocket(fileno=here.detach()) as sock:
        sock.first, sock.most = first, most
        there.sendall(answer)
        there.shutdown(socket.SHUT_WR)
        yield sock


Outcome = tuple[Response | type[NoResponse], bool]


def plain(answer: bytes, first: int, most: int) -> Outcome:
    with answered(answer, first, most) as sock:
        try:
            return client().post(sock, "/generate", GROUP, [b"{}"])
        except NoResponse as e:
            assert e.__cause__ is e.__context__ is None
            return type(e), False


def by_library(answer: bytes) -> Outcome:
    """The same answer, of which urllib3 reads all."""
    with answered(answer, FIRST_READ, FIRST_READ) as sock:
        try:
            return client()._by_library(sock, b"")
        except Exception:
            return NoResponse, False


STATUS = st.sampled_from(
    [b"HTTP/1.1 200 OK"] * 6
    + [
        b"HTTP/1.1 503 Busy",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 200",
        b"HTTP/1.1 204 None",
        b"HTTP/1.1 100 Continue",
        b"200 OK",
    ]
)
LINES = st.sampled_from(
    [
        b"Content-Type: application/json",
        b"Server: x",
        b"Connection: keep-alive",
        b"connection:keep-alive, close",
        b"Connection: close",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding : chunked",
        b"Content-Encoding: gzip",
        b"Retry-After: 3",
        b" folded",
        b"X: y\nTransfer-Encoding: chunked",
        b"Content-Length: 5",
        b"content-length:+5",
        b"Content-Length: -1",
        b"Content-Length: 5, 5",
        b"Content-Length: 999999999999",
        b"Content-Length: " + b"9" * 5000,
        b"no colon",
        b"X: a\rTransfer-Encoding: chunked",
        b"",
    ]
)


BODIES = [
    b"3\r\nabc\r\n0\r\n\r\n",
    b"-5\r\nabc\r\n0\r\n\r\n",
    b"-1\r\nabc\r\n0\r\n\r\n",
    b"f" * 40 + b"\r\nabc",
    b"x" * (MOST + 50),
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
]


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40) | st.sampled_from(BODIES))
    length = len(body) + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    lines = draw(st.lists(LINES, max_size=3))
    if draw(st.integers(0, 5)):
        lines.insert(draw(st.integers(0, len(lines))), b"Content-Length: %d" % max(0, length))
    answer = b"\r\n".join([draw(STATUS), *lines, b"", body])
    return answer[: draw(st.integers(0, len(answer)))] if draw(st.integers(0, 5)) == 0 else answer


@settings(max_examples=500, deadline=None)
@given(answers(), st.sampled_from([1, 70, FIRST_READ]), st.sampled_from([1, 7, FIRST_READ]))
def test_it_reads_what_urllib3_reads(answer: bytes, first: int, most: int) -> None:
    (expected, expected_reusable), (found, reusable) = by_library(answer), plain(answer, first, most)
    if isinstance(found, Response):
        assert found == expected
    else:
        assert expected is NoResponse
    assert expected_reusable or not reusable  # also false when the server said more than it was asked


def test_a_large_body_arrives() -> None:
    here, there = socket.socketpair()
    arrived: list[bytes] = []
    pieces = [b"x" * 3_000_000, b"y"]
    whole = b"".join(pieces)

    def serve() -> None:
        with there:
            while not b"".join(arrived[-2:]).endswith(whole[-2:]) or sum(map(len, arrived)) < len(whole):
                arrived.append(there.recv(1 << 16))
            there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = threading.Thread(target=serve)
    thread.start()
    with here:
        post = client(port=8000, prefix="/engine").post
        assert post(here, "/generate", GROUP, pieces) == (Response(200, b"{}"), True)
        thread.join()
    head, _, body = b"".join(arrived).partition(b"\r\n\r\n")
    assert body == whole and head.startswith(b"POST /engine/generate HTTP/1.1\r\n")
    assert {b"Host: host:8000", b"X-SMG-Routing-Key: run/group", b"Content-Length: %d" % len(whole)} <= set(
        head.split(b"\r\n")
    )


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 503 Busy\r\n\r\n"])
def test_an_answer_that_does_not_come_in_time(came: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = client(0.05, *server.getsockname())
        with http.take(3.0) as sock, server.accept()[0] as there, pytest.raises(ResponseTimeout):
            there.sendall(came)
            http.post(sock, "/generate", GROUP, [b"{}"])


@pytest.mark.parametrize("surplus", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["closed", "said more"])
def test_a_connection_on_which_the_server_did_something_is_not_used(surplus: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = client(60.0, *server.getsockname())
        kept = http.take(3.0)
        with server.accept()[0] as there:
            there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            assert http.post(kept, "/generate", GROUP, [b"{}"]) == (Response(200, b"{}"), True)
            http.give_back(kept, True)
            there.sendall(surplus)
            there.shutdown(socket.SHUT_WR)
            until(lambda: not is_silent(kept))
            with http.take(3.0) as other:
                assert other is not kept and kept.fileno() == -1


def test_what_a_server_says_before_it_has_read_the_whole_request() -> None:
    """It closes with the rest unread, which resets the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = client(60.0, *server.getsockname())
        with http.take(3.0) as sock:
            with server.accept()[0] as there:
                sock.sendall(b"POST /generate HTTP/1.1\r\n")
                assert there.recv(1, socket.MSG_PEEK)
                there.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
            assert http.post(sock, "/generate", GROUP, [b"{}"]) == (Response(503, b"busy"), False)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"]
)
def test_after_another_status_the_connection_is_not_used(answer: bytes) -> None:
    """The answer itself may come after it, and would be taken for that to the next request."""
    assert [by_library(answer)[1], plain(answer, FIRST_READ, FIRST_READ)[1]] == [False, False]


def test_the_connection_that_was_used_last_is_used_next() -> None:
    with scripted_engine() as engine:
        http = client(60.0, "127.0.0.1", engine.port)
        first, second = http.take(3.0), http.take(3.0)
        http.give_back(first, True)
        http.give_back(second, True)
        assert http.take(3.0) is second and http.take(3.0) is first
        http.give_back(first, False)
        http.close()
        http.give_back(second, True)
        assert first.fileno() == second.fileno() == -1 and not http._idle


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("https://127.0.0.1:1", {}),
        ("http://user:secret@127.0.0.1:1", {}),
        ("http://127.0.0.1:1?key=secret", {}),
        ("http://engine.münchen:1", {}),
        ("127.0.0.1:1", {}),
        ("http://user:secret@:x/", {}),
        ("http://127.0.0.1:1", {"api_key": "very-secret\n"}),
    ],
)
def test_what_is_not_plain_goes_through_requests(url: str, options: dict[str, str]) -> None:
    http = EngineHttp(url, 1, **options)
    assert http._plain is None
    with pytest.raises(NoResponse) as caught:
        http.generate("/generate", [b"{}"], rid="rid", key="key", routing_key="group")
    assert "secret" not in str(caught.value)
    http.close()


def test_an_address_without_a_server_is_a_failed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_TIMEOUT_S", 0.2)
    for host in ("127.0.0.1", "no-such-host.invalid", "[::1]"):
        engine = EngineHttp(f"http://{host}:9", 1)
        with pytest.raises(ConnectFailed):
            engine.generate("/generate", [b"{}"], rid="rid", key="key", routing_key="group")


def test_a_key_and_an_answer_in_chunks(connect: Connect) -> None:
    def chunked(body: dict[str, object]) -> object:
        text = json.dumps(good_reply(body)).encode()
        return 200, lambda: [b"%x\r\n%b\r\n" % (len(text), text), b"0\r\n\r\n"], {"Transfer-Encoding": "chunked"}

    with scripted_engine(chunked, chunked) as engine:
        engine_client = connect(engine, api_key="key")
        assert generate(engine_client).finish is generate(engine_client).finish is Finish.STOP
        assert [headers["Authorization"] for _, _, headers in engine.requests if "Authorization" in headers]
        assert engine_client._http._plain is not None and len(engine_client._http._plain._idle) == 1
