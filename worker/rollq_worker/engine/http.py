"""HTTP to one engine, in which the wait for a response can be ended from another thread.

Generations go through `plain_http` where the address and the headers are plain. Everything else, such as TLS and
logins, goes through requests. The invariant: a socket is only shut down while the thread that it is shut down for uses
it, and no connection is used after it lay idle for long. It knows nothing of what is sent.
"""

import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from rollq_worker.engine.plain_http import PlainHttp
from rollq_worker.http_client import HttpClient, NoResponse, Response

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 900.0
"""Longest generation in seconds, a pause for new weights included. `HangWatch` finds a hung engine long before."""
MAX_BYTES = 256 << 20
"""Longest response in bytes. 100,000 sampled tokens take about 5 MB, routed experts of 48 layers 2 kB a token."""
MAX_IDLE_S = 3.0
"""Longest time in seconds that a connection may lie idle. SGLang closes it after 5 s, and loses what is sent at that
moment."""
KEEPALIVE = [
    # A machine that vanished never resets its connections. Keepalive notices within half a minute, long before the read
    # timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [*HTTPConnection.default_socket_options, *KEEPALIVE]
ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which a router keeps a group's jobs on one server."""
HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Values that are sent as they are."""


class WaitCut(Exception):
    """This process ended the wait for a response. `hung` says that it did so because the engine hangs."""

    def __init__(self, hung: bool) -> None:
        super().__init__("the engine does not answer" if hung else "the wait was ended")
        self.hung = hung


class EngineHttp:
    """GET and POST to the engine at `url`, from up to `threads` threads at once."""

    def __init__(
        self,
        url: str,
        threads: int,
        *,
        api_key: str | None = None,
        max_bytes: int = MAX_BYTES,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        """`read_timeout_s` limits each read of a generation's answer."""
        self._url = url
        self._read_timeout_s = read_timeout_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.in_flight = RequestsInFlight()
        self._adapter = _Adapter(self.in_flight, pool_connections=1, pool_maxsize=threads, max_retries=0)
        self._client = HttpClient(self._adapter, max_bytes=max_bytes, connect_timeout_s=CONNECT_TIMEOUT_S)
        self._plain = _plain_http(url, self._headers, max_bytes, read_timeout_s)

    def get(self, path: str, *, timeout_s: float) -> Response:
        """Raises NoResponse."""
        return self._client.request("GET", self._url + path, timeout_s=timeout_s, headers=self._headers)

    def post(self, path: str, body: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None) -> Response:
        """Raises NoResponse."""
        headers = {**self._headers, **(headers or {})}
        return self._client.request("POST", self._url + path, body, timeout_s=timeout_s, headers=headers)

    def generate(self, path: str, body: Sequence[bytes], *, rid: str, key: str, routing_key: str) -> Response:
        """POST a body in pieces: the request `rid` for the job `key`, the wait for which can be cut. Raises WaitCut,
        NoResponse."""
        request = self.in_flight.add(rid, key)
        sock, reusable = None, False
        try:
            if self._plain is None or not HEADER_VALUE.fullmatch(routing_key):
                headers = {ROUTING_KEY: routing_key}
                return self.post(path, b"".join(body), timeout_s=self._read_timeout_s, headers=headers)
            request.sock = sock = self._plain.take(MAX_IDLE_S)
            response, reusable = self._plain.post(sock, path, (ROUTING_KEY, routing_key), body)
            return response
        except NoResponse as e:
            if request.cut is not None:
                raise request.cut from e
            raise
        finally:
            self.in_flight.remove()  # before another thread can take the connection
            if self._plain is not None and sock is not None:
                self._plain.give_back(sock, reusable)

    def close_idle(self) -> None:
        """Close idle connections. The server has closed its ends, and a quiet worker would keep ours open."""
        self._adapter.close_idle()
        if self._plain is not None:
            self._plain.close_idle(MAX_IDLE_S)

    def close(self) -> None:
        self._client.close()
        if self._plain is not None:
            self._plain.close()


def _plain_http(url: str, headers: Mapping[str, str], max_bytes: int, timeout_s: float) -> PlainHttp | None:
    """None if the address or a header is not plain."""
    try:
        parts = parse_url(url)
    except LocationParseError:
        return None
    login_or_query = parts.auth or parts.query or parts.fragment
    if parts.scheme != "http" or not parts.host or login_or_query or not url.isascii():
        return None
    if not all(map(HEADER_VALUE.fullmatch, headers.values())):
        return None
    return PlainHttp(
        parts.host,
        parts.port or 80,
        (parts.path or "").rstrip("/"),
        headers,
        max_bytes=max_bytes,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        timeout_s=timeout_s,
        socket_options=SOCKET_OPTIONS,
    )


@dataclass(eq=False)
class RequestInFlight:
    """One request whose wait can be cut."""

    rid: str
    key: str
    """The job it is for."""
    since: float = field(default_factory=time.monotonic)
    sock: socket.socket | None = None
    """The socket, while the thread uses it for this request."""
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

    def remove(self) -> None:
        """This thread's request has its response, or will have none."""
        with self._lock:
            del self._by_thread[threading.get_ident()]

    def wait_on(self, sock: socket.socket | None) -> None:
        """This thread is about to wait on that socket, or with None has stopped waiting."""
        if (request := self._by_thread.get(threading.get_ident())) is not None:
            with self._lock:
                request.sock = sock

    def rids(self) -> list[str]:
        with self._lock:
            return [request.rid for request in self._by_thread.values()]

    def cut(self, key: str | None, *, hung: bool) -> int:
        """End the wait for that job's response; with None, all waits. Returns how many were ended."""
        with self._lock:  # held, so that no socket passes to another thread meanwhile
            requests = [request for request in self._by_thread.values() if key in (None, request.key)]
            for request in requests:
                if request.sock is not None:
                    request.cut = WaitCut(hung)
                    with suppress(OSError):  # it may be closed by now
                        # Not the TLS socket's own shutdown: it drops the state that the other thread reads with.
                        socket.socket.shutdown(request.sock, socket.SHUT_RDWR)
        return sum(request.cut is not None for request in requests)

    def longest_wait_s(self) -> float:
        with self._lock:
            return max((time.monotonic() - request.since for request in self._by_thread.values()), default=0.0)


class _Adapter(HTTPAdapter):
    def __init__(self, in_flight: RequestsInFlight, **options: Any) -> None:
        self._in_flight = in_flight
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        kwargs["socket_options"] = SOCKET_OPTIONS
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {
            "http": _tracked(HTTPConnectionPool, HTTPConnection, self._in_flight),
            "https": _tracked(HTTPSConnectionPool, HTTPSConnection, self._in_flight),
        }

    def close_idle(self) -> None:
        pools = self.poolmanager.pools
        for queue in [pools[key].pool for key in pools.keys()]:  # noqa: SIM118 (it cannot be iterated over)
            if queue is None:  # the session is closed
                continue
            with queue.mutex:  # no thread takes a connection meanwhile
                for connection in filter(None, queue.queue):
                    _close_if_idle(connection)


def _tracked(pool: type[Any], connection: type[Any], in_flight: RequestsInFlight) -> type[Any]:
    """urllib3's pool, with connections that register their socket, and that are closed when they lay idle."""

    def getresponse(self: Any) -> Any:
        in_flight.wait_on(self.sock)
        return connection.getresponse(self)

    def put(self: Any, connection: Any) -> None:
        in_flight.wait_on(None)  # before another thread can take it
        if connection is not None:
            connection.idle_since = time.monotonic()
        pool._put_conn(self, connection)

    def get(self: Any, timeout: float | None = None) -> Any:
        connection = pool._get_conn(self, timeout)
        _close_if_idle(connection)
        return connection

    tracked = type(connection.__name__, (connection,), {"getresponse": getresponse})
    return type(pool.__name__, (pool,), {"ConnectionCls": tracked, "_put_conn": put, "_get_conn": get})


def _close_if_idle(connection: Any) -> None:
    """Close it if it lay idle for too long; urllib3 opens it again when it is used."""
    if time.monotonic() - getattr(connection, "idle_since", time.monotonic()) > MAX_IDLE_S:
        connection.close()
