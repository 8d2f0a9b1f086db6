"""The connections that an endpoint holds: so many at a time, and a stranger's for a few seconds.

A stranger is a connection that has not shown the episode's key. Where there are too many
connections, the oldest stranger's is closed, or while strangers are few the one that has waited
longest for a request. One is accepted at a time, and only once its first words are there, so
programs without the key do not keep those that have it away. It does not read requests.
"""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

CONNECTIONS = 128
"""Number of connections to an episode's endpoint: more than requests, so that a request too many
gets an answer.
"""
STRANGERS = 64
"""Number of strangers that others make room for: as many as requests at once."""
STRANGER_S = 5.0
"""Seconds in which a connection must show the key."""
RETRY_S = 0.02
"""Seconds before another connection is accepted where one could not be."""

log = logging.getLogger(__name__)
NOT_LOGGED = (HttpProcessingError, web.RequestPayloadError)
log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], NOT_LOGGED)))
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
        self._idle: dict[web.RequestHandler, None] = {}
        """Connections with the key and without a request, the one that waits longest first."""

    async def accept(self, listening: socket.socket) -> None:
        """Serves the connections of a socket until it is cancelled."""
        if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(STRANGER_S))
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
                await loop.connect_accepted_socket(self, connection)
            except OSError:  # it has gone already, or the process has no descriptor left
                await asyncio.sleep(RETRY_S)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        loop = asyncio.get_running_loop()
        self._open.add(handler)
        self._strangers[handler] = transport, loop.call_later(STRANGER_S, transport.abort)
        if len(self._open) > CONNECTIONS:
            self._close_one()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        self._lost(handler)

    @contextmanager
    def request_with_key(self, handler: web.RequestHandler) -> Iterator[None]:
        """A block for a request that has shown the key. From now on, the connection is trusted."""
        self._forget(handler)
        try:
            yield
        finally:
            if handler in self._open:
                self._idle[handler] = None

    def _close_one(self) -> None:
        """Closes a connection, so that there are no more than CONNECTIONS."""
        if self._idle and len(self._strangers) <= STRANGERS:
            closed = next(iter(self._idle))
            closed.close()
        else:
            closed = next(iter(self._strangers))
            transport, _ = self._strangers[closed]
            asyncio.get_running_loop().call_soon(transport.abort)  # the newest has not begun yet
        self._lost(closed)

    def _forget(self, handler: web.RequestHandler) -> None:
        self._idle.pop(handler, None)
        stranger = self._strangers.pop(handler, None)
        if stranger:
            stranger[1].cancel()

    def _lost(self, handler: web.RequestHandler) -> None:
        self._open.discard(handler)
        self._forget(handler)
