"""Kombu's Redis transport, taught to survive what it cannot read.

An envelope that is not JSON, or lacks what a message needs, ends a stock Celery worker ("Unrecoverable error"), and
the next one. Here it is logged and dropped: the ledger publishes again whatever job it may have been. The only module
that looks inside kombu; a test feeds it junk.
"""

import logging
from typing import Any

from kombu.transport import redis

log = logging.getLogger(__name__)

SHOWN = 80
"""Bytes of an unreadable message that are logged: it may hold anything."""


class Channel(redis.Channel):
    """Drops messages that cannot be parsed."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (ValueError, RecursionError) as e:  # no UTF-8, no JSON: it has been popped already
            log.error("dropping a broker message that is no JSON: %s", type(e).__name__)
            return True


class Transport(redis.Transport):
    """Drops messages that are no envelopes."""

    Channel = Channel

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            readable = isinstance(message, dict) and self._parse(message)
        except Exception as e:
            readable = False
            log.error("dropping a broker message that is no task: %s: %.*s", type(e).__name__, SHOWN, repr(message))
        if readable:
            super()._deliver(message, queue)

    def _parse(self, message: dict[str, Any]) -> bool:
        """Build the message as the consumer will, on a copy. Raises whatever building it raises."""
        channel = next(channel for channel in self.channels if channel)
        channel.Message(dict(message), channel=channel)
        return True
