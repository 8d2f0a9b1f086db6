"""The HTTP session of the engine's client: pooled connections, on which a wait for an answer can be cut off.

A thread that waits for a reply cannot look up. So another one may shut the socket under it: the wait ends at once, as
if the engine had hung up. It knows nothing of what is sent.
"""

import socket
import threading
from contextlib import suppress
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError

KEEPALIVE = [
    # A machine that vanished never resets its connections: notice within half a minute, not after the read timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class Wires:
    """The socket on which each thread waits for an answer."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def hold(self, sock: socket.socket | None) -> None:
        """This thread is about to wait on it."""
        if sock is not None:
            self._sockets[threading.get_ident()] = sock

    def drop(self) -> None:
        """This thread has its answer."""
        self._sockets.pop(threading.get_ident(), None)

    def cut(self, thread: int) -> bool:
        """End that thread's wait. False when it waits for nothing."""
        sock = self._sockets.get(thread)
        if sock is None:
            return False
        with suppress(OSError):  # it may be closed by now
            # Not the TLS socket's own shutdown, which would take away the state that the other thread is reading with.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
        return True


def open_session(size: int, api_key: str | None, wires: Wires) -> requests.Session:
    """A session for `size` threads."""
    session = requests.Session()
    session.trust_env = False  # no proxy and no .netrc between a worker and its engine, and no look-up for each request
    session.headers["Content-Type"] = "application/json"
    if api_key:
        session.headers["Authorization"] = f"Bearer {api_key}"
    adapter = _Adapter(wires, pool_connections=4, pool_maxsize=size, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


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


def _watched(pool: type[Any], connection: type[Any], wires: Wires) -> type[Any]:
    """urllib3's pool, whose connections say when they begin to wait."""

    def getresponse(self: Any) -> Any:
        wires.hold(self.sock)
        return connection.getresponse(self)

    watched = type(connection.__name__, (connection,), {"getresponse": getresponse})
    return type(pool.__name__, (pool,), {"ConnectionCls": watched})


def refused(error: requests.RequestException) -> bool:
    """Nothing was sent: refused, unreachable, unresolved, or no answer to the connection in time."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(error, requests.ConnectTimeout) or isinstance(reason, NewConnectionError)


def brief(error: requests.RequestException) -> str:
    reason = getattr(error.args[0] if error.args else None, "reason", None) or error
    return f"{type(error).__name__}: {str(reason).partition('): ')[2] or reason}"
