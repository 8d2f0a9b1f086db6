"""The connections that an endpoint holds: so many at a time, and a stranger's for a few seconds.

A stranger is a connection that has not shown the episode's key. Where there are too many
connections, the oldest stranger's is closed once it had a second to show the key. Until then a new
one waits in the system's queue. So programs without the key do not keep those that have it away. It
knows no requests.
"""

import asyncio
import logging
import socket
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

CONNECTIONS = 64
"""Number of connections to an episode's endpoint."""
FIRST_S, STRANGER_S = 1.0, 5.0
"""Seconds that each connection has to show the key, and that one has where others do not wait."""
RETRY_S = 0.02
"""Seconds between two looks for room."""

log = logging.getLogger(__name__)
log.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)
"""A stream for the server's own log. Requests that are no HTTP are answered and not logged: anybody
can send them.
"""


class Connections(web.Server):
    """A server that bounds its connections."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, logger=log, access_log=None, **options)
        self._open: set[web.RequestHandler] = set()
        self._strangers: dict[
            web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]
        ] = {}
        """The oldest first."""

    async def accept(self, listening: socket.socket) -> None:
        """Serve the connections of a socket until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
                while not self._has_room():
                    await asyncio.sleep(RETRY_S)
                await loop.connect_accepted_socket(self, connection)
            except OSError:  # it has gone already, or the process has no descriptor left
                await asyncio.sleep(RETRY_S)

    def _has_room(self) -> bool:
        """True if another connection may be accepted. Closes the oldest stranger's for it."""
        if len(self._open) < CONNECTIONS:
            return True
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        transport, end = self._strangers[oldest]
        if asyncio.get_running_loop().time() < end.when() - STRANGER_S + FIRST_S:
            return False
        transport.abort()
        self._lost(oldest)
        return True

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        end = asyncio.get_running_loop().call_later(STRANGER_S, transport.abort)
        self._open.add(handler)
        self._strangers[handler] = transport, end

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        self._lost(handler)

    def has_shown_the_key(self, handler: web.RequestHandler) -> None:
        """This connection is no stranger's."""
        stranger = self._strangers.pop(handler, None)
        if stranger:
            stranger[1].cancel()

    def _lost(self, handler: web.RequestHandler) -> None:
        self._open.discard(handler)
        self.has_shown_the_key(handler)
