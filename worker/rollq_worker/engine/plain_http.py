"""HTTP/1.1 over kept connections without TLS, for the one request that a worker sends all the time: POST /generate.

It reads the plain case alone, which is an answer 200 with a length whose head came in one piece. Every other answer
(another status, chunked, compressed, garbage) is left to urllib3. The invariants are those of `http_client`: bodies are
read up to a limit, and no error holds a header or an address. No request is sent twice. It knows nothing of who waits,
or of what is sent.
"""

import io
import re
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

from rollq.servers.sockets import is_silent, send_all
from rollq_worker.http_client import CHUNK, ConnectFailed, NoResponse, Response, failure_of, read_body

FIRST_READ = 1 << 13
"""Number of bytes in which most answers end, head included. They are allocated while a thread waits."""
HEADERS = {"Accept": "*/*", "User-Agent": "rollq", "Content-Type": "application/json"}
_OTHERS = rb"content-length|content-encoding|transfer-encoding|retry-after|connection:(?! *keep-alive\r)"
_LINES = rb"(?:\r\n(?!%b)[a-z0-9-]+:[\t -~]*)*" % _OTHERS
PLAIN_HEAD = re.compile(rb"http/1\.1 200 [ -~]*%b\r\ncontent-length: *(\d{1,12}) *%b\r\n" % (_LINES, _LINES))
"""A head in lower case whose body has a length and is not packed, on a connection that stays open."""


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
        timeout_s: float,
        socket_options: Sequence[tuple[int, int, int | bytes]] = (),
    ) -> None:
        """`prefix` is the start of every path; the headers are sent as they are. `timeout_s` limits each read and each
        write."""
        self._address = (host, port)
        self._prefix = prefix
        lines = {"Host": host if port == 80 else f"{host}:{port}", **HEADERS, **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
        self._max_bytes = max_bytes
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        # The kernel counts, because Python's own timeouts poll before each read and write.
        limit = struct.pack("ll", *divmod(max(1, round(timeout_s * 1e6)), 1_000_000))
        limits = [(socket.SOL_SOCKET, option, limit) for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)]
        self._socket_options = [*socket_options, *limits]
        self._idle: deque[tuple[socket.socket, float]] = deque()
        """With the time of its last use."""
        self._closed = False

    def take(self, max_idle_s: float) -> socket.socket:
        """An open connection that did not lie idle for longer. Raises ConnectFailed."""
        try:
            while True:
                sock, used_at = self._idle.pop()
                # The server may have closed it, or said what it was not asked.
                if time.monotonic() - used_at <= max_idle_s and is_silent(sock):
                    return sock
                sock.close()
        except IndexError:
            pass  # none is left
        try:
            sock = connection.create_connection(
                self._address, self._connect_timeout_s, socket_options=self._socket_options
            )
        except (OSError, LocationParseError) as e:
            failure = ConnectFailed(f"{type(e).__name__}: {e}")
        else:
            sock.settimeout(None)
            return sock
        raise failure

    def give_back(self, sock: socket.socket, reusable: bool) -> None:
        if reusable and not self._closed:
            self._idle.append((sock, time.monotonic()))
        else:
            sock.close()

    def close_idle(self, max_idle_s: float) -> None:
        """Close connections that lay idle for longer."""
        with suppress(IndexError):  # until none is left
            while time.monotonic() - self._idle[0][1] > max_idle_s:
                self._idle.popleft()[0].close()

    def close(self) -> None:
        """Close the idle connections now, and the others when they are given back."""
        self._closed = True
        self.close_idle(-1.0)

    def post(
        self, sock: socket.socket, path: str, header: tuple[str, str], body: Sequence[bytes]
    ) -> tuple[Response, bool]:
        """The answer to a body in pieces, and whether the connection may be used again. Raises NoResponse, after which
        it may not."""
        line = f"POST {self._prefix}{path} HTTP/1.1\r\n{header[0]}: {header[1]}\r\n"
        head = b"%bContent-Length: %d\r\n%b\r\n" % (line.encode(), sum(map(len, body)), self._headers)
        try:
            # It may answer before it has read everything. If not, reading says so.
            with suppress(BrokenPipeError, ConnectionResetError):
                send_all(sock, b"".join((head, *body)))
            received = sock.recv(FIRST_READ)
            end = received.find(b"\r\n\r\n")
            plain = PLAIN_HEAD.fullmatch(received[: end + 2].lower())
            if plain and (length := int(plain[1])) <= self._max_bytes:
                return _plain_body(sock, received[end + 4 :], length)
            return self._by_library(sock, received)
        except BlockingIOError:  # so the kernel says that time is up
            failure: NoResponse = failure_of(TimeoutError("the read or write timed out"))
        except (OSError, HTTPError, client.HTTPException, ValueError) as e:
            failure = failure_of(e)
        raise failure

    def _by_library(self, sock: socket.socket, received: bytes) -> tuple[Response, bool]:
        """The answer that begins so, as urllib3 reads it. After a status other than 200 the server may say more."""
        sock.settimeout(self._timeout_s)
        stream: Any = _Stream(sock, received)
        answer = client.HTTPResponse(stream, method="POST")
        try:
            answer.begin()
            headers = HTTPHeaderDict(answer.headers.items())
            raw = HTTPResponse(answer, headers, answer.status, preload_content=False, original_response=answer)
            body = read_body(raw, self._max_bytes)
            reusable = answer.status == 200 and answer.isclosed() and not answer.will_close
            sock.settimeout(None)
            return Response(answer.status, body, answer.headers.get("Retry-After", "")), reusable
        finally:
            answer.close()


class _Stream(socket.SocketIO):
    """What has come, and then what comes."""

    def __init__(self, sock: socket.socket, received: bytes) -> None:
        super().__init__(sock, "r")
        self._received = io.BytesIO(received)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readinto(self, buffer: Any) -> int | None:
        return self._received.readinto(buffer) or super().readinto(buffer)


def _plain_body(sock: socket.socket, body: bytes, length: int) -> tuple[Response, bool]:
    """The answer whose body begins so, and whether it ended where it said."""
    pieces, left = [body], length - len(body)
    while left > 0:
        if not (piece := sock.recv(min(left, CHUNK))):
            raise NoResponse(f"IncompleteRead: the answer broke off, with {left} bytes to come")
        pieces.append(piece)
        left -= len(piece)
    return Response(200, b"".join(pieces)[:length]), not left
