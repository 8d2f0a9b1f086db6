"""The plain case of HTTP says what urllib3 says, whatever a server answers and however the bytes come."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.trajectory import Finish
from rollq_worker.engine import http
from rollq_worker.engine.http import EngineHttp
from rollq_worker.engine.plain_http import MAX_PIECES, Connection, PlainHttp
from rollq_worker.http_client import ConnectFailed, NoResponse, Response, ResponseTimeout
from tests.rollq_worker.engine.clients import Connect, generate
from tests.rollq_worker.engine.engine_servers import good_reply, scripted_engine
from tests.waiting import until

MOST = 300
GROUP = ("X-SMG-Routing-Key", "run/group")


class SlowSocket(socket.socket):
    """A socket that gives a few bytes at a time."""

    most = 1 << 16

    def recv(self, size: int, flags: int = 0) -> bytes:
        return super().recv(min(size, self.most), flags)


@contextmanager
def answered(answer: bytes, most: int) -> Iterator[Connection]:
    """A connection to a server that gives this answer and hangs up."""
    here, there = socket.socketpair()
    with there, SlowSocket(fileno=here.detach()) as sock:
        sock.most = most
        there.sendall(answer)
        there.shutdown(socket.SHUT_WR)
        yield Connection(sock)


Outcome = tuple[Response | type[NoResponse], bool]


def plain(answer: bytes, most: int) -> Outcome:
    client = PlainHttp("host", 80, "", {}, max_bytes=MOST, connect_timeout_s=1.0)
    with answered(answer, most) as kept:
        try:
            return client.post(kept, "/generate", GROUP, [b"{}"], 60.0)
        except NoResponse as e:
            assert e.__cause__ is e.__context__ is None
            return type(e), False


def by_library(answer: bytes) -> Outcome:
    """The same answer, of which urllib3 reads all."""
    client = PlainHttp("host", 80, "", {}, max_bytes=MOST, connect_timeout_s=1.0)
    with answered(answer, MOST) as kept:
        try:
            return client._other(kept.sock, b"")
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
        b"no colon",
        b"X: a\rTransfer-Encoding: chunked",
        b"",
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40) | st.sampled_from([b"3\r\nabc\r\n0\r\n\r\n", b"x" * (MOST + 50)]))
    length = len(body) + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    lines = draw(st.lists(LINES, max_size=3))
    if draw(st.integers(0, 5)):
        lines.insert(draw(st.integers(0, len(lines))), b"Content-Length: %d" % max(0, length))
    answer = b"\r\n".join([draw(STATUS), *lines, b"", body])
    return answer[: draw(st.integers(0, len(answer)))] if draw(st.integers(0, 5)) == 0 else answer


@settings(max_examples=500, deadline=None)
@given(answers(), st.sampled_from([1, 7, 1 << 16]))
def test_it_reads_what_urllib3_reads(answer: bytes, most: int) -> None:
    (expected, expected_reusable), (found, reusable) = by_library(answer), plain(answer, most)
    if isinstance(found, Response):
        assert found == expected
    else:
        assert expected is NoResponse
    assert expected_reusable or not reusable  # also false when the server said more than it was asked


@pytest.mark.parametrize("pieces", [[b"x" * 3_000_000, b"y"], [b"z"] * (3 * MAX_PIECES)], ids=["long", "many"])
def test_a_body_of_any_size_arrives(pieces: Sequence[bytes]) -> None:
    here, there = socket.socketpair()
    arrived: list[bytes] = []
    whole = b"".join(pieces)

    def serve() -> None:
        with there:
            while not b"".join(arrived[-2:]).endswith(whole[-2:]) or sum(map(len, arrived)) < len(whole):
                arrived.append(there.recv(1 << 16))
            there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = threading.Thread(target=serve)
    thread.start()
    with here:
        client = PlainHttp("host", 8000, "/engine", {}, max_bytes=MOST, connect_timeout_s=1.0)
        assert client.post(Connection(here), "/generate", GROUP, pieces, 60.0) == (Response(200, b"{}"), True)
        thread.join()
    head, _, body = b"".join(arrived).partition(b"\r\n\r\n")
    assert body == whole and head.startswith(b"POST /engine/generate HTTP/1.1\r\n")
    assert {b"Host: host:8000", b"X-SMG-Routing-Key: run/group", b"Content-Length: %d" % len(whole)} <= set(
        head.split(b"\r\n")
    )


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 503 Busy\r\n\r\n"])
def test_an_answer_that_does_not_come_in_time(came: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(came)
        client = PlainHttp("host", 80, "", {}, max_bytes=MOST, connect_timeout_s=1.0)
        with pytest.raises(ResponseTimeout):
            client.post(Connection(here), "/generate", GROUP, [b"{}"], 0.05)


def test_a_connection_that_the_server_closed_is_not_used(connect: Connect) -> None:
    with scripted_engine() as engine:
        client = connect(engine)
        generate(client)
        plain = client._http._plain
        assert plain is not None
        [kept] = plain._idle
        there = socket.socket(fileno=socket.dup(kept.sock.fileno()))
        there.shutdown(socket.SHUT_RDWR)
        there.close()
        until(kept.dropped)
        assert generate(client).finish is Finish.STOP
        assert len(engine.bodies()) == 2 and list(plain._idle) != [kept]


def test_the_connection_that_was_used_last_is_used_next() -> None:
    with scripted_engine() as engine:
        client = PlainHttp("127.0.0.1", engine.port, "", {}, max_bytes=MOST, connect_timeout_s=3.0)
        first, second = client.take(3.0), client.take(3.0)
        client.give_back(first, True)
        client.give_back(second, True)
        assert client.take(3.0) is second and client.take(3.0) is first
        client.give_back(first, False)
        client.close()
        client.give_back(second, True)
        assert first.sock.fileno() == second.sock.fileno() == -1 and not client._idle


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
    client = EngineHttp(url, 1, **options)
    assert client._plain is None
    with pytest.raises(NoResponse) as caught:
        client.generate("/generate", [b"{}"], rid="rid", key="key", timeout_s=1.0, routing_key="group")
    assert "secret" not in str(caught.value)
    client.close()


def test_an_address_without_a_server_is_a_failed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_TIMEOUT_S", 0.2)
    for host in ("127.0.0.1", "no-such-host.invalid", "[::1]"):
        client = EngineHttp(f"http://{host}:9", 1)
        with pytest.raises(ConnectFailed):
            client.generate("/generate", [b"{}"], rid="rid", key="key", timeout_s=1.0, routing_key="group")


def test_a_key_and_an_answer_in_chunks(connect: Connect) -> None:
    def chunked(body: dict[str, object]) -> object:
        text = json.dumps(good_reply(body)).encode()
        return 200, lambda: [b"%x\r\n%b\r\n" % (len(text), text), b"0\r\n\r\n"], {"Transfer-Encoding": "chunked"}

    with scripted_engine(chunked, chunked) as engine:
        client = connect(engine, api_key="key")
        assert generate(client).finish is generate(client).finish is Finish.STOP
        assert [headers["Authorization"] for _, _, headers in engine.requests if "Authorization" in headers]
        assert client._http._plain is not None and len(client._http._plain._idle) == 1
