"""Connections that a client holds between calls, so that a call is one write and one read.

redis-py's pool polls each connection that it hands out, and its client prepares for retries and for telemetry at each
call, which costs more than the call itself. This is only for commands that may be sent twice, because the caller sends
them again in redis-py's own way after an error. The module knows nothing of what is sent.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

MOST = 16
"""Number of connections that are held. More calls than that are seldom on their way at once."""
FRESH_S = 10.0
"""Seconds without use after which a connection goes back to the pool, which finds out whether it still works."""


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
        self._pool.release(connection)
        return None

    def call(self, connection: Any, command: Sequence[Any]) -> Any:
        """The reply, or any error of redis-py. After an error the connection is left."""
        try:
            connection.send_command(*command, check_health=False)
            reply = connection.read_response()
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
            self._keep(self._pool.get_connection())

    def leave(self) -> None:
        """Close those that are not in use."""
        while self._idle:
            connection, _ = self._idle.pop()
            connection.disconnect()
            self._pool.release(connection)

    def _keep(self, connection: Any) -> None:
        self._idle.append((connection, time.monotonic()))
