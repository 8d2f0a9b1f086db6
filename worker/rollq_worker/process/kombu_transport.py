"""Kombu's Redis transport, taught to survive what it cannot read.

An envelope that is not JSON, or lacks what a message needs, ends a stock Celery worker ("Unrecoverable error"), and
the next one; so does a key of the broker that is of another type. Here such a message is logged and dropped and such a
key set aside: the ledger publishes again whatever jobs were in it. The only module that looks inside kombu; a test
feeds it junk.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kombu.transport import redis
from redis.exceptions import ResponseError

from rollq.ledger.keys import QUEUE

log = logging.getLogger(__name__)

T = TypeVar("T")

SHOWN = 80
"""Bytes of an unreadable message that are logged: it may hold anything."""


class QoS(redis.QoS):
    """Keeps its books of messages that were not acknowledged in keys that may have to be mended."""

    def append(self, message: Any, delivery_tag: str) -> None:
        self.channel.mended(lambda: super(QoS, self).append(message, delivery_tag))

    def ack(self, delivery_tag: str) -> None:
        self.channel.mended(lambda: super(QoS, self).ack(delivery_tag))

    def restore_visible(self, *args: Any, **options: Any) -> None:
        self.channel.mended(lambda: super(QoS, self).restore_visible(*args, **options))


class Channel(redis.Channel):
    """Drops messages that cannot be parsed, and sets keys aside that are of another type than kombu's."""

    QoS = QoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (ValueError, RecursionError) as e:  # no UTF-8, no JSON: it has been popped already
            log.error("dropping a broker message that is no JSON: %s", type(e).__name__)
        except ResponseError as e:
            self._mend(e)
        return True

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        self.mended(lambda: super(Channel, self)._put(queue, message, **options))

    def _size(self, queue: str) -> Any:
        return self.mended(lambda: super(Channel, self)._size(queue))

    def _queue_bind(self, *args: Any) -> None:
        self.mended(lambda: super(Channel, self)._queue_bind(*args))

    def get_table(self, exchange: str) -> Any:
        return self.mended(lambda: super(Channel, self).get_table(exchange))

    def mended(self, call: Callable[[], T]) -> T:
        """What the call returns, the second time if a key was in its way."""
        try:
            return call()
        except ResponseError as e:
            self._mend(e)
            return call()

    def _mend(self, error: ResponseError) -> None:
        """Set every key of another type aside, under another name. Raises the error again when there is none."""
        mended = False
        with self.conn_or_acquire() as client:
            for key, kind in self._keys():
                found = client.type(key).decode()
                if found not in (kind, "none"):
                    aside = f"{key}.damaged"
                    client.rename(key, aside)
                    if kind == "set":  # without it nothing is routed here
                        self._queue_bind(QUEUE, QUEUE, "", QUEUE)
                    log.error("the broker's key %s was a %s where a %s belongs; it is now %s", key, found, kind, aside)
                    mended = True
        if not mended:
            raise error

    def _keys(self) -> Iterator[tuple[str, str]]:
        """The broker's keys, and of what type each must be."""
        for priority in self.priority_steps:
            yield self._q_for_pri(QUEUE, priority), "list"
        yield self.keyprefix_queue % QUEUE, "set"
        yield self.unacked_key, "hash"
        yield self.unacked_index_key, "zset"


class Transport(redis.Transport):
    """Drops messages that are no envelopes."""

    Channel = Channel

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            self._parse(message)
        except Exception as e:
            log.error("dropping a broker message that is no task: %s: %.*s", type(e).__name__, SHOWN, repr(message))
        else:
            super()._deliver(message, queue)

    def _parse(self, message: Any) -> None:
        """Build the message as the consumer will, on a copy. Raises whatever building it raises."""
        channel = next(channel for channel in self.channels if channel)
        channel.Message({**message}, channel=channel)
