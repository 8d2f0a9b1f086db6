"""HTTP/1.1 over kept connections without TLS, for the one request that a worker sends all the time: POST /generate.

It costs a seventh of what urllib3 does, because it knows the plain case alone: an answer 200 with a length. Every other
answer (another status, chunked, compressed, garbage) is read by urllib3, from the bytes that have come. The invariants
are those of `http_client`: bodies are read up to a limit, and no error holds a header or an address. No request is sent
twice. It knows nothing of who waits, or of what is sent.
"""

import io
import re
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import client
from typing import Any

from urllib3 import HTTPHeaderDict, HTTPResponse
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import connection

from rollq_worker.http_client import CHUNK, ConnectFailed, NoResponse, Response, failure_of, read_body

FIRST_READ = 1 << 16
"""Number of bytes in which most answers end, head included."""
MAX_HEAD = 1 << 16
MAX_PIECES = 512
"""Pieces that are sent in one call. Linux takes 1024."""
HEADERS = {"Accept": "*/*", "User-Agent": "rollq", "Content-Type": "application/json"}
_OTHERS = rb"content-length|content-encoding|transfer-encoding|retry-after|connection:(?! *keep-alive\r)"
_LINES = rb"(?:\r\n(?!%b)[a-z0-9-]+:[\t -~]*)*" % _OTHERS
PLAIN_HEAD = re.compile(rb"http/1\.1 200 [ -~]*%b\r\ncontent-length: *(\d{1,12}) *%b\r\n" % (_LINES, _LINES))
"""A head in lower case whose body has a length and is not packed, on a connection that stays open."""


class Connection:
    """One open connection, for one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.idle_since = 0.0
        self._timeout_s = 0.0
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def limit_waits(self, timeout_s: float) -> None:
        """Each read and each write may take that long. The kernel counts; Python's own timeouts poll before each."""
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            limit = struct.pack("ll", *divmod(max(1, round(timeout_s * 1e6)), 1_000_000))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def dropped(self) -> bool:
        """Whether the server has closed it, or has said what it was not asked."""
        return bool(self._readable.poll(0))

    def close(self) -> None:
        self.sock.close()


class PlainHttp:
    """Connections to one server, for all threads. The one that was used last is used next."""

    def __init__(
        self,
        host: str,
        port: int,
        prefix: str,
        headers: Mapping[str, str],
        *,
        max_bytes: int,
        connect_timeout_s: float,
        socket_options: list[tuple[int, int, int | bytes]] | None = None,
    ) -> None:
        """`prefix` is the start of every path; the headers are sent as they are."""
        self._address = (host, port)
        self._prefix = prefix
        at = f"[{host}]" if ":" in host else host
        lines = {"Host": at if port == 80 else f"{at}:{port}", **HEADERS, **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
        self._max_bytes = max_bytes
        self._connect_timeout_s = connect_timeout_s
        self._socket_options = socket_options
        self._idle: deque[Connection] = deque()
        self._closed = False

    def take(self, max_idle_s: float) -> Connection:
        """An open connection that did not lie idle for longer. Raises ConnectFailed."""
        try:
            while True:
                kept = self._idle.pop()
                if time.monotonic() - kept.idle_since <= max_idle_s and not kept.dropped():
                    return kept
                kept.close()
        except IndexError:
            pass  # none is left
        try:
            sock = connection.create_connection(
                self._address, self._connect_timeout_s, socket_options=self._socket_options
            )
            sock.settimeout(None)
        except (OSError, LocationParseError) as e:
            failure = ConnectFailed(f"{type(e).__name__}: {e}")
        else:
            return Connection(sock)
        raise failure

    def give_back(self, kept: Connection, reusable: bool) -> None:
        if reusable and not self._closed:
            kept.idle_since = time.monotonic()
            self._idle.append(kept)
        else:
            kept.close()

    def close_idle(self, max_idle_s: float) -> None:
        """Close connections that lay idle for longer."""
        with suppress(IndexError):  # until none is left
            while True:
                kept = self._idle.popleft()
                if time.monotonic() - kept.idle_since <= max_idle_s:
                    self._idle.appendleft(kept)
                    return
                kept.close()

    def close(self) -> None:
        """Close the idle connections now, and the others when they are given back."""
        self._closed = True
        self.close_idle(-1.0)

    def post(
        self, kept: Connection, path: str, header: tuple[str, str], body: Sequence[bytes], timeout_s: float
    ) -> tuple[Response, bool]:
        """The answer to a body in pieces, and whether the connection may be used again. `timeout_s` limits each read.
        Raises NoResponse, after which the connection is of no more use."""
        line = f"POST {self._prefix}{path} HTTP/1.1\r\n{header[0]}: {header[1]}\r\n"
        length = sum(map(len, body))
        head = b"%bContent-Length: %d\r\n%b\r\n" % (line.encode(), length, self._headers)
        try:
            kept.limit_waits(timeout_s)
            _send(kept.sock, (head, *body), len(head) + length)
            received, end = b"", -1
            while end < 0 and len(received) < MAX_HEAD and (more := kept.sock.recv(FIRST_READ)):
                received += more
                end = received.find(b"\r\n\r\n")
            plain = PLAIN_HEAD.fullmatch(received[: end + 2].lower())
            if plain and (length := int(plain[1])) <= self._max_bytes:
                return _plain_body(kept.sock, received[end + 4 :], length)
            return self._other(kept.sock, received)
        except BlockingIOError:  # so the kernel says that time is up
            failure: NoResponse = failure_of(TimeoutError("the read or write timed out"))
        except (OSError, HTTPError, client.HTTPException) as e:
            failure = failure_of(e)
        raise failure

    def _other(self, sock: socket.socket, received: bytes) -> tuple[Response, bool]:
        """The answer as urllib3 reads it."""
        stream: Any = _Stream(received, sock)
        answer = client.HTTPResponse(stream, method="POST")
        try:
            answer.begin()
            headers = HTTPHeaderDict(answer.headers.items())
            raw = HTTPResponse(answer, headers, answer.status, preload_content=False, original_response=answer)
            body = read_body(raw, self._max_bytes)
            reusable = answer.isclosed() and not answer.will_close
            return Response(answer.status, body, answer.headers.get("Retry-After", "")), reusable
        finally:
            answer.close()


class _Stream(io.RawIOBase):
    """What has come, and then what comes. It is read in the way that http.client reads a socket."""

    def __init__(self, received: bytes, sock: socket.socket) -> None:
        self._received = received
        self._sock = sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._received:
            piece = self._received[: len(buffer)]
            self._received = self._received[len(piece) :]
            buffer[: len(piece)] = piece
            return len(piece)
        try:
            return self._sock.recv_into(buffer)
        except BlockingIOError as e:
            raise TimeoutError("the read timed out") from e


def _send(sock: socket.socket, pieces: Sequence[bytes], length: int) -> None:
    if len(pieces) > MAX_PIECES:
        pieces = [b"".join(pieces)]
    with suppress(BrokenPipeError):  # it may have answered before it had read everything; if not, reading says so
        sent = sock.sendmsg(pieces)
        if sent < length:
            sock.sendall(memoryview(b"".join(pieces))[sent:])


def _plain_body(sock: socket.socket, body: bytes, length: int) -> tuple[Response, bool]:
    """The answer whose body begins so, and whether it ended where it said."""
    left = length - len(body)
    if left <= 0:
        return Response(200, body[:length]), not left
    pieces = [body]
    while left:
        if not (piece := sock.recv(min(left, CHUNK))):
            raise NoResponse(f"IncompleteRead: the answer broke off, with {left} bytes to come")
        pieces.append(piece)
        left -= len(piece)
    return Response(200, b"".join(pieces)), True
