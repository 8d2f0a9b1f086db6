"""Kombu's Redis transport, made to survive what it cannot read.

A stock Celery worker ends ("Unrecoverable error") on a message that is not JSON or lacks a field, and on a broker's key
of another type. So does the next worker. Here such a message is logged and dropped. Such a key is renamed, and the
ledger publishes the jobs that were in it again. This is the only module that looks inside kombu.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kombu.transport import redis
from redis.exceptions import ResponseError

from rollq.ledger.keys import QUEUE

log = logging.getLogger(__name__)

T = TypeVar("T")

LOGGED_BYTES = 80
"""Number of bytes of an unreadable message that are logged."""


class QoS(redis.QoS):
    """Repairs the keys of unacknowledged messages."""

    def append(self, message: Any, delivery_tag: str) -> None:
        self.channel.with_repair(lambda: super(QoS, self).append(message, delivery_tag))

    def ack(self, delivery_tag: str) -> None:
        self.channel.with_repair(lambda: super(QoS, self).ack(delivery_tag))

    def restore_visible(self, *args: Any, **options: Any) -> None:
        self.channel.with_repair(lambda: super(QoS, self).restore_visible(*args, **options))


class Channel(redis.Channel):
    """Drops messages that are not JSON, and renames keys that have another type than kombu's."""

    QoS = QoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (ValueError, RecursionError) as e:  # not UTF-8 or not JSON; it is off the queue already
            log.error("dropping a broker message that is no JSON: %s", type(e).__name__)
        except ResponseError as e:
            self._repair(e)
        return True

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        self.with_repair(lambda: super(Channel, self)._put(queue, message, **options))

    def _size(self, queue: str) -> Any:
        return self.with_repair(lambda: super(Channel, self)._size(queue))

    def _queue_bind(self, *args: Any) -> None:
        self.with_repair(lambda: super(Channel, self)._queue_bind(*args))

    def get_table(self, exchange: str) -> Any:
        return self.with_repair(lambda: super(Channel, self).get_table(exchange))

    def with_repair(self, call: Callable[[], T]) -> T:
        """The call's result. When the call meets a key of another type, the key is repaired and the call repeated."""
        try:
            return call()
        except ResponseError as e:
            self._repair(e)
            return call()

    def _repair(self, error: ResponseError) -> None:
        """Rename every key of another type. Raises the error again when no key has one."""
        repaired = False
        with self.conn_or_acquire() as client:
            for key, kind in self._keys():
                found = client.type(key).decode()
                if found not in (kind, "none"):
                    aside = f"{key}.damaged"
                    client.rename(key, aside)
                    if kind == "set":  # without it nothing is routed here
                        self._queue_bind(QUEUE, QUEUE, "", QUEUE)
                    log.error("the broker's key %s was a %s where a %s belongs; it is now %s", key, found, kind, aside)
                    repaired = True
        if not repaired:
            raise error

    def _keys(self) -> Iterator[tuple[str, str]]:
        """The broker's keys, each with the type it must have."""
        for priority in self.priority_steps:
            yield self._q_for_pri(QUEUE, priority), "list"
        yield self.keyprefix_queue % QUEUE, "set"
        yield self.unacked_key, "hash"
        yield self.unacked_index_key, "zset"


class Transport(redis.Transport):
    """Drops messages that are not Celery tasks."""

    Channel = Channel

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            self._parse(message)
        except Exception as e:
            shown = repr(message)
            log.error("dropping a broker message that is no task: %s: %.*s", type(e).__name__, LOGGED_BYTES, shown)
        else:
            super()._deliver(message, queue)

    def _parse(self, message: Any) -> None:
        """Build the message on a copy, as the consumer will. Raises what that raises."""
        channel = next(channel for channel in self.channels if channel)
        channel.Message({**message}, channel=channel)
