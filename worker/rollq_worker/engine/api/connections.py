"""Kept connections to one engine.

They are urllib3's, without its pool: a pool takes a connection back before its user knows, and a
user's wait may be cut from another thread. So here a connection belongs to one thread from `take`
to `give_back`. A connection that lay idle for long is not used: SGLang closes it after 5 s, and
loses what is sent at that moment. No request is sent twice.
"""

import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote

from certifi import where
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers, parse_url

from rollq_worker.remote.http_client import ConnectFailed, Response, failure_of, read_body

CONNECT_TIMEOUT_S = 3.0
MAX_IDLE_S = 3.0
"""Longest time in seconds that a connection may lie idle."""
KEEPALIVE = [
    # A machine that vanished never resets its connections. Keepalive notices within half a minute,
    # long before the read timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
HEADERS = {"Accept": "*/*", "User-Agent": "rollq", "Content-Type": "application/json"}


class EngineConnections:
    """Connections to the engine at an address, which may have a login. The one that was used last
    is used next.
    """

    def __init__(self, url: str, max_bytes: int) -> None:
        parts = parse_url(url)
        self._headers = dict(HEADERS)
        if parts.auth:
            self._headers["Authorization"] = make_headers(basic_auth=unquote(parts.auth))[
                "authorization"
            ]
        self._prefix = (parts.path or "").rstrip("/")
        self._max_bytes = max_bytes
        self._class, tls = (
            (HTTPSConnection, {"ca_certs": where()})
            if parts.scheme == "https"
            else (HTTPConnection, {})
        )
        self._options: dict[str, Any] = {
            "host": (parts.host or "").strip("[]"),
            "port": parts.port,
            "timeout": CONNECT_TIMEOUT_S,
            "socket_options": [*HTTPConnection.default_socket_options, *KEEPALIVE],
            **tls,
        }
        self._idle: deque[tuple[HTTPConnection, float]] = deque()
        """With the time of its last use."""
        self._closed = False

    def take(self) -> HTTPConnection:
        """An open connection that did not lie idle for long. Raises ConnectFailed."""
        with suppress(IndexError):  # until none is left
            while True:
                connection, used_at = self._idle.pop()
                # The server may have closed it, or said what it was not asked.
                if time.monotonic() - used_at <= MAX_IDLE_S and connection.is_connected:
                    return connection
                connection.close()
        connection = self._class(**self._options)
        try:
            connection.connect()
        except (OSError, HTTPError, ValueError) as e:
            connection.close()
            failure = ConnectFailed(str(failure_of(e)))
        else:
            return connection
        raise failure

    def give_back(self, connection: HTTPConnection, reusable: bool) -> None:
        if reusable and not self._closed:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()

    def close_idle(self, max_idle_s: float) -> None:
        """Close those that lay idle for longer. The server has closed its ends, and a quiet worker
        would keep ours open.
        """
        with suppress(IndexError):  # until none is left
            while time.monotonic() - self._idle[0][1] > max_idle_s:
                self._idle.popleft()[0].close()

    def close(self) -> None:
        """Close the idle ones now, and the others when they are given back."""
        self._closed = True
        self.close_idle(-1.0)

    def exchange(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> tuple[Response, bool]:
        """The answer, and whether the connection may be used again. Raises NoResponse, after which
        it may not.

        `timeout_s` limits each read and each write.
        """
        connection.timeout = timeout_s
        try:
            # It may answer before it has read everything. If not, reading says so.
            with suppress(BrokenPipeError, ConnectionResetError):
                headers = {**self._headers, **headers}
                connection.request(
                    method, self._prefix + path, body, headers, preload_content=False
                )
            answer = connection.getresponse()
            content = read_body(answer, self._max_bytes)
            # After another status the server may say more. What the server will close is closed by
            # now.
            reusable = (
                answer.status == 200
                and len(content) <= self._max_bytes
                and not connection.is_closed
            )
            return Response(answer.status, content, answer.headers.get("Retry-After", "")), reusable
        except (OSError, HTTPError, HTTPException, ValueError) as e:
            failure = failure_of(e)
        raise failure
