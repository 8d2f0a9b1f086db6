"""HTTP to one engine: pooled connections, on which a wait for an answer can be cut off.

The invariant: a request ends in an `Answer` or a `NoAnswer`; a socket is cut only while the thread that it is cut for
waits on it; and no connection is used after it lay idle for long: servers close those (SGLang after 5 s), and what is
sent at that moment is lost. It knows nothing of what is sent.
"""

import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError

CONNECT_TIMEOUT_S = 3.0
LARGEST_ANSWER = 64 << 20
"""Bytes that are read of an answer; 100,000 sampled tokens take about 5 MB. One cut off is no JSON, and so garbage."""
PIECE = 1 << 18
IDLE_S = 3.0
"""A connection that lay idle for longer is not used again."""
KEEPALIVE = [
    # A machine that vanished never resets its connections: notice within half a minute, not after the read timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class NoAnswer(Exception):
    """A request without an answer: it broke off, and nobody knows how far the engine got with it."""


class Unreached(NoAnswer):
    """Nothing was sent: refused, unreachable, unresolved, or no answer to the connection in time."""


class TimedOut(NoAnswer):
    """It was sent, and no answer came in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> object:
        """None where there is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Line:
    """The connections to the engine at `url`, for `size` threads."""

    def __init__(self, url: str, size: int, api_key: str | None) -> None:
        self.wires = Wires()
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = (
            False  # no proxy and no .netrc between a worker and its engine, and no look-up of them
        )
        self._session.headers["Content-Type"] = "application/json"
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"
        self._adapter = _Adapter(self.wires, pool_connections=1, pool_maxsize=size, max_retries=0)
        self._session.mount("http://", self._adapter)
        self._session.mount("https://", self._adapter)

    def get(self, path: str, *, timeout_s: float) -> Answer:
        """Raises NoAnswer."""
        return self._send("GET", path, timeout_s=timeout_s)

    def post(self, path: str, body: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None) -> Answer:
        """Raises NoAnswer."""
        return self._send("POST", path, body, timeout_s=timeout_s, headers=headers)

    def sweep(self) -> None:
        """Close the connections that lie idle: the server has closed its ends, and a quiet worker would keep ours."""
        self._adapter.sweep()

    def close(self) -> None:
        self._session.close()

    def _send(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float, headers: Any = None
    ) -> Answer:
        try:
            with self._session.request(
                method,
                self._url + path,
                data=body,
                headers=headers,
                timeout=(CONNECT_TIMEOUT_S, timeout_s),
                allow_redirects=False,  # they lose the body, and name an engine that nobody chose
                stream=True,
            ) as answer:
                return Answer(answer.status_code, _read(answer))
        except requests.ReadTimeout as e:
            raise TimedOut(_brief(e)) from e
        except requests.RequestException as e:
            reason = getattr(e.args[0] if e.args else None, "reason", None)
            unreached = isinstance(e, requests.ConnectTimeout) or isinstance(reason, NewConnectionError)
            raise (Unreached if unreached else NoAnswer)(_brief(e)) from e


class Wires:
    """The socket on which each thread waits for an answer, from the request to the end of the answer."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sockets)

    def hold(self, sock: socket.socket | None) -> None:
        """This thread is about to wait on it."""
        if sock is not None:
            with self._lock:
                self._sockets[threading.get_ident()] = sock

    def drop(self) -> None:
        """This thread has its answer, or will get none."""
        with self._lock:
            self._sockets.pop(threading.get_ident(), None)

    def cut(self, thread: int) -> bool:
        """End that thread's wait. False when it waits for nothing."""
        with self._lock:  # so that the socket is not another thread's by now
            sock = self._sockets.get(thread)
            if sock is None:
                return False
            with suppress(OSError):  # it may be closed by now
                # Not the TLS socket's own shutdown, which would take away the state the other thread is reading with.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            return True


class _Adapter(HTTPAdapter):
    def __init__(self, wires: Wires, **options: Any) -> None:
        self._wires = wires
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        kwargs["socket_options"] = [*HTTPConnection.default_socket_options, *KEEPALIVE]
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {
            "http": _watched(HTTPConnectionPool, HTTPConnection, self._wires),
            "https": _watched(HTTPSConnectionPool, HTTPSConnection, self._wires),
        }

    def sweep(self) -> None:
        pools = self.poolmanager.pools
        for queue in [pools[key].pool for key in pools.keys()]:  # noqa: SIM118 (it cannot be iterated over)
            if queue is None:  # the session is closed
                continue
            with queue.mutex:  # nobody takes a connection meanwhile
                for connection in filter(None, queue.queue):
                    _close_idle(connection)


def _watched(pool: type[Any], connection: type[Any], wires: Wires) -> type[Any]:
    """urllib3's pool, whose connections say when they begin to wait, and which knows since when they lie idle."""

    def getresponse(self: Any) -> Any:
        wires.hold(self.sock)
        return connection.getresponse(self)

    def put(self: Any, connection: Any) -> None:
        wires.drop()  # before another thread can take it
        if connection is not None:
            connection.idle_since = time.monotonic()
        pool._put_conn(self, connection)

    def get(self: Any, timeout: float | None = None) -> Any:
        connection = pool._get_conn(self, timeout)
        _close_idle(connection)
        return connection

    watched = type(connection.__name__, (connection,), {"getresponse": getresponse})
    return type(pool.__name__, (pool,), {"ConnectionCls": watched, "_put_conn": put, "_get_conn": get})


def _close_idle(connection: Any) -> None:
    """Close it if it lay idle for too long; urllib3 opens it again when it is used."""
    if time.monotonic() - getattr(connection, "idle_since", time.monotonic()) > IDLE_S:
        connection.close()


def _read(answer: requests.Response) -> bytes:
    """The body, as far as it is read at all."""
    pieces, length = [], 0
    for piece in answer.iter_content(PIECE):
        pieces.append(piece)
        length += len(piece)
        if length > LARGEST_ANSWER:
            break
    return b"".join(pieces)


def _brief(error: requests.RequestException) -> str:
    """What went wrong, without the address."""
    reason = getattr(error.args[0] if error.args else None, "reason", None) or error
    return f"{type(error).__name__}: {str(reason).partition('): ')[2] or reason}"
