"""HTTP to one engine, in which the wait for a generation can be ended from another thread.

It is not `remote.http_client`, because requests keeps its sockets to itself: here a wait is cut by
its socket, and the machine's proxies do not count. Connections are the standard library's, which
cost half the CPU of urllib3's. No request is sent twice.

The invariant: a socket is only shut down while the thread that it is shut down for uses it. It
knows nothing of what is sent.
"""

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import (
    HTTP_PORT,
    HTTPS_PORT,
    HTTPConnection,
    HTTPException,
    HTTPSConnection,
    IncompleteRead,
)
from urllib.parse import unquote

from certifi import where
from urllib3.util import make_headers, parse_url, wait_for_read

from rollq_worker.remote.http_client import (
    ConnectFailed,
    NoResponse,
    Response,
    failure_of,
    read_body,
)

READ_TIMEOUT_S = 900.0
"""Longest generation in seconds, a pause for new weights included. `HangWatch` finds a hung engine
long before.
"""
MAX_BYTES = 256 << 20
"""Longest response in bytes. 100,000 sampled tokens take about 5 MB, routed experts of 48 layers 2
kB a token.
"""
ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which a router keeps a group's jobs on one server."""

CONNECT_TIMEOUT_S = 3.0
MAX_IDLE_S = 3.0
"""Longest time in seconds that a connection may lie idle. SGLang closes it after 5 s, and loses
what is sent at that moment.
"""
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


class WaitCut(Exception):
    """This process ended the wait for a response; `hung`: because the engine hangs."""

    def __init__(self, hung: bool) -> None:
        super().__init__("the engine does not answer" if hung else "the wait was ended")
        self.hung = hung


class EngineHttp:
    """GET and POST to the engine at `url`, from any number of threads at once."""

    def __init__(self, url: str, *, max_bytes: int = MAX_BYTES) -> None:
        self.in_flight = RequestsInFlight()
        self._connections = EngineConnections(url, max_bytes)

    def get(self, path: str, *, timeout_s: float) -> Response:
        """Raises NoResponse."""
        return self._ask("GET", path, None, {}, timeout_s)

    def post(
        self,
        path: str,
        body: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Raises NoResponse."""
        return self._ask("POST", path, body, headers or {}, timeout_s)

    def generate(
        self,
        path: str,
        body: bytes,
        *,
        rid: str,
        key: str,
        routing_key: str,
    ) -> Response:
        """POST the request `rid` for the job `key`, the wait for which can be cut. Raises WaitCut,
        NoResponse.
        """
        request = self.in_flight.add(rid, key)
        try:
            headers = {ROUTING_KEY: routing_key}
            return self._ask("POST", path, body, headers, READ_TIMEOUT_S, request)
        except NoResponse as e:
            if request.cut is not None:
                raise request.cut from e
            raise
        finally:
            self.in_flight.remove()

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        request: "RequestInFlight | None" = None,
    ) -> Response:
        connection = self._connections.take()
        reusable = False
        try:
            if request is not None:
                self.in_flight.use(request, connection.sock)
            response, reusable = self._connections.exchange(
                connection, method, path, body, headers, timeout_s
            )
            return response
        finally:
            if request is not None:
                self.in_flight.remove()  # before another thread can take the connection
            self._connections.give_back(connection, reusable)

    def close_idle(self) -> None:
        """Closes connections that have not been used for a while."""
        self._connections.close_idle(MAX_IDLE_S)

    def close(self) -> None:
        self._connections.close()


@dataclass(eq=False)
class RequestInFlight:
    """One request whose wait can be cut."""

    rid: str
    key: str
    """The job it is for."""
    since: float = field(default_factory=time.monotonic)
    sock: socket.socket | None = None
    """Socket of its connection, once it is made."""
    cut: WaitCut | None = None
    """Set when the wait was ended."""


class RequestsInFlight:
    """The requests of this process that can be cut, at most one per thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_thread: dict[int, RequestInFlight] = {}

    def add(self, rid: str, key: str) -> RequestInFlight:
        """This thread sends the request `rid` and waits for its response, until `remove`."""
        request = RequestInFlight(rid, key)
        with self._lock:
            self._by_thread[threading.get_ident()] = request
        return request

    def use(self, request: RequestInFlight, sock: socket.socket | None) -> None:
        """Takes over its connection. Raises WaitCut when the wait was ended before."""
        with self._lock:
            request.sock = sock
            if request.cut is not None:
                raise request.cut

    def remove(self) -> None:
        """This thread's request has its response, or will have none. Safe to repeat."""
        with self._lock:
            self._by_thread.pop(threading.get_ident(), None)

    def rids(self) -> list[str]:
        with self._lock:
            return [request.rid for request in self._by_thread.values()]

    def cut(self, key: str | None, *, hung: bool) -> int:
        """Ends the wait for that job's response; with None, all waits. Returns how many were ended.
        One that still connects ends when it has connected, or failed to.
        """
        with self._lock:  # held, so that no socket passes to another thread meanwhile
            requests = [
                request for request in self._by_thread.values() if key in (None, request.key)
            ]
            for request in requests:
                request.cut = WaitCut(hung)
                if request.sock is not None:
                    with suppress(OSError):  # it may be closed by now
                        # Not the TLS socket's own shutdown: it drops the state that the other
                        # thread reads with.
                        socket.socket.shutdown(request.sock, socket.SHUT_RDWR)
        return len(requests)

    def longest_wait_s(self) -> float:
        with self._lock:
            return max(
                (time.monotonic() - request.since for request in self._by_thread.values()),
                default=0.0,
            )


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
        connection: Callable[..., HTTPConnection] = HTTPConnection
        port = parts.port or HTTP_PORT
        if parts.scheme == "https":
            port = parts.port or HTTPS_PORT
            context = ssl.create_default_context()  # the machine's, or those in SSL_CERT_FILE
            context.load_verify_locations(where())
            connection = partial(HTTPSConnection, context=context)
        host = (parts.host or "").strip("[]")  # of an IPv6 address, which sockets take without
        self._connection = partial(connection, host, port, timeout=CONNECT_TIMEOUT_S)
        self._idle: deque[tuple[HTTPConnection, float]] = deque()
        """Idle connections, each with the monotonic time of its last use."""
        self._closed = False

    def take(self) -> HTTPConnection:
        """An open connection that did not lie idle for long. Raises ConnectFailed."""
        with suppress(IndexError):  # until none is left
            while True:
                connection, used_at = self._idle.pop()
                # The server may have closed it, or said what it was not asked.
                if time.monotonic() - used_at <= MAX_IDLE_S and not wait_for_read(
                    connection.sock, timeout=0.0
                ):
                    return connection
                connection.close()
        connection = self._connection()
        try:
            connection.connect()
            for option in KEEPALIVE:
                connection.sock.setsockopt(*option)
        except (OSError, HTTPException, ValueError) as e:
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
        """Closes those that lay idle for longer. The server has closed its ends, and a quiet worker
        would keep ours open.
        """
        with suppress(IndexError):  # until none is left
            while time.monotonic() - self._idle[0][1] > max_idle_s:
                self._idle.popleft()[0].close()

    def close(self) -> None:
        """Closes the idle ones now, and the others when they are given back."""
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
        connection.sock.settimeout(timeout_s)
        try:
            # It may answer before it has read everything. If not, reading says so.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + path, body, {**self._headers, **headers})
            with connection.getresponse() as answer:
                content = read_body(answer.read, self._max_bytes)
            complete = len(content) <= self._max_bytes
            if complete and answer.length:  # the server hung up before
                raise IncompleteRead(content, answer.length)
            # After another status the server may say more. What the server will close is closed by
            # now.
            reusable = answer.status == 200 and complete and connection.sock is not None
            return Response(answer.status, content, answer.getheader("Retry-After", "")), reusable
        except (OSError, HTTPException, ValueError) as e:
            failure = failure_of(e)
        raise failure
