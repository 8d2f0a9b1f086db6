"""Connections that a client holds between calls, so that a call is one write and one read.

redis-py's pool polls each connection that it hands out, its client prepares for retries and for telemetry at each
call, and its sockets poll before each read and write, which costs more than the call itself. This is only for commands
that may be sent twice, because the caller sends them again in redis-py's own way after an error. A reply that comes in
one piece is read here, with redis-py's own hiredis reader, and every other by redis-py. The module knows nothing of
what is sent.
"""

import os
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from rollq.servers.sockets import send_all

try:
    import hiredis
except ImportError:  # it is optional, and redis-py does without it
    hiredis = None  # type: ignore[assignment]

MOST = 16
"""Number of connections that are held. More calls than that are seldom on their way at once."""
FRESH_S = 10.0
"""Seconds without use after which a connection goes back to the pool, which finds out whether it still works."""
PUSH = getattr(hiredis, "PushNotification", ())
"""The type of a message that the server was not asked for; none in old versions of hiredis."""
READ = 1 << 12
"""Number of bytes in which most replies end. They are allocated while a thread waits."""


class HeldConnections:
    """Connections of one pool. Safe to use from many threads, and after a fork."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: deque[tuple[Any, float]] = deque()
        """The last one that was used comes first, so that few are kept fresh. With the time of its last use."""
        self._process = os.getpid()

    def take(self) -> Any | None:
        """A connection that worked a moment ago; None when there is none."""
        if self._process != os.getpid():
            self._idle, self._process = deque(), os.getpid()  # the others belong to the process that forked
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return None
        if time.monotonic() - used_at < FRESH_S:
            return connection
        self._leave(connection)
        return None

    def call(self, connection: Any, command: Sequence[Any]) -> Any:
        """The reply, or any error of redis-py. After an error the connection is left."""
        try:
            reply = _answer(connection, command)
        except BaseException:
            # Its reply may still be on its way, to be read by the next command.
            connection.disconnect()
            self._pool.release(connection)
            raise
        self._keep(connection)
        return reply

    def fill(self) -> None:
        """Hold one more connection of the pool, which has just worked, if there are not too many."""
        if len(self._idle) < MOST:
            connection = self._pool.get_connection()
            if (sock := _plain_socket(connection)) and connection.socket_timeout:
                # The kernel counts, because Python's own timeouts poll.
                limit = struct.pack("ll", *divmod(max(1, round(connection.socket_timeout * 1e6)), 1_000_000))
                for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    sock.setsockopt(socket.SOL_SOCKET, option, limit)
                sock.settimeout(None)
            self._keep(connection)

    def leave(self) -> None:
        """Close those that are not in use."""
        while self._idle:
            connection, _ = self._idle.pop()
            connection.disconnect()
            self._pool.release(connection)

    def _keep(self, connection: Any) -> None:
        self._idle.append((connection, time.monotonic()))

    def _leave(self, connection: Any) -> None:
        """Give a connection that may still work back to the pool, as the pool gave it."""
        if sock := _plain_socket(connection):
            sock.settimeout(connection.socket_timeout)
        self._pool.release(connection)


def _plain_socket(connection: Any) -> socket.socket | None:
    """The connection's socket; None for one with TLS, and for a connection that is not as redis-py's are."""
    sock = getattr(connection, "_sock", None)
    return sock if type(sock) is socket.socket else None


def _answer(connection: Any, command: Sequence[Any]) -> Any:
    """The reply to the command, or any error of redis-py."""
    reader: Any = getattr(getattr(connection, "_parser", None), "_reader", None)
    sock = _plain_socket(connection)
    if hiredis is None or sock is None or not hasattr(reader, "feed"):
        connection.send_command(*command, check_health=False)
        return connection.read_response()
    send_all(sock, hiredis.pack_command(tuple(command)))
    reader.feed(sock.recv(READ))
    reply = reader.gets()
    if isinstance(reply, Exception):
        raise reply
    if isinstance(reply, PUSH):
        connection._parser.handle_push_response(reply)
    elif type(reply) is not object:  # redis-py's mark of a reply with more to come
        return reply
    return connection.read_response()
