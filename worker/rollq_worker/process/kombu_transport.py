"""Kombu's Redis transport, made to survive what it cannot read and connections that die in silence.

A stock Celery worker ends ("Unrecoverable error") on a message that is not JSON or lacks a field, on a broker's key of
another type, and when it acknowledges a message whose connection is gone. Here such a message is logged and dropped,
such a key is renamed, and the ledger publishes the jobs that were in it again. A message that asks for more than to
play a job (a time, a callback) is refused, because Celery would hold it in memory or act on it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from kombu.connection import Connection as KombuConnection
from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from redis.exceptions import ConnectionError, ResponseError

from rollq.client.celery_publisher import TASK
from rollq.servers.connection import CONNECTION_ERRORS
from rollq.servers.refusal import refuses_writes

log = logging.getLogger(__name__)

T = TypeVar("T")

LOGGED_BYTES = 80
"""Number of bytes of a refused message that are logged."""
WAIT_S = 5
"""Seconds that Redis keeps a consumer waiting for a message before it answers that there is none. A message ends the
wait at once."""
CHECK_EVERY_S = 5
"""Seconds between two looks at whether that answer is overdue. It is after WAIT_S + CHECK_EVERY_S, so a silent
connection is given up after 10 to 15 s, and a Redis that is slow is not."""
REFUSED_PAUSE_S = 1.0
"""Seconds before a worker tries again at a broker that takes no writes."""
OPTIONS = {
    # Messages are acknowledged early and the ledger publishes lost ones again: the copies that kombu would keep in
    # Redis would only cost.
    "ack_emulation": False,
    "health_check_interval": CHECK_EVERY_S,
}
"""Transport options of a worker, beyond those of all who use the broker."""
JSON = "application/json"
UNWANTED_HEADERS = ("eta", "expires", "timelimit", "compression")
UNWANTED_PARTS = ("callbacks", "errbacks", "chain", "chord")
"""What a message for this worker must not have: Celery would hold it in memory, inflate it, or act on it."""


def install() -> None:
    """Let kombu use these transports in this process."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
    TRANSPORT_ALIASES["sentinel"] = f"{__name__}:SentinelTransport"


class Connection(KombuConnection):
    """Tries to connect every second or two. Kombu's own pauses grow to half a minute."""

    def _ensure_connection(self, *args: Any, **options: Any) -> Any:
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": 1}
        return super()._ensure_connection(*args, **pauses | options)


class NoJob(Exception):
    """A message asks for something else than to play a job. The text has nothing of the message."""


class Message(virtual.Message):
    """A message that asks to play a job and for nothing more. Raises NoJob for every other."""

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        try:
            # Before anything is decoded: what is compressed, or in another encoding, may be a bomb.
            self._check_headers(payload["headers"])
            if payload["content-type"] != JSON:
                raise ValueError("it is not JSON")
            super().__init__(payload, channel, **options)
            if self.errors:
                self._reraise_error()
            self.accept = {JSON}
            self._check_parts(self.decode())  # which the message remembers for Celery
        except Exception as e:
            raise NoJob(str(e) if type(e) is ValueError else type(e).__name__) from e

    def _check_headers(self, headers: Any) -> None:
        if headers.get("task") != TASK:
            raise ValueError("another task")
        if not isinstance(headers.get("id"), str):
            raise ValueError("it has no id")
        for name in UNWANTED_HEADERS:
            if headers.get(name) not in (None, [None, None]):
                raise ValueError(f"it has {name}")

    def _check_parts(self, body: Any) -> None:
        _, _, embedded = body
        for name in UNWANTED_PARTS:
            if embedded.get(name):
                raise ValueError(f"it has {name}")


class Channel(redis.Channel):
    """Drops messages that are not JSON, renames keys that have another type than kombu's, and never waits for a reply
    that may not come."""

    Message = Message
    do_restore = False
    """The ledger brings back what a lost connection had not passed on."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (ValueError, RecursionError) as e:  # not UTF-8 or not JSON; it is off the queue already
            log.error("dropping a broker message that is no JSON: %s", type(e).__name__)
        except ResponseError as e:
            self._repair(e)
        return True

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        self.with_repair(lambda: super(Channel, self)._put(queue, message, **options), queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return True  # Redis deletes an empty list

    def _size(self, queue: str) -> int:
        return self.with_repair(lambda: self._count(queue), queue)

    def _count(self, queue: str) -> int:
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for priority in self.priority_steps:
                pipe.llen(self._q_for_pri(queue, priority))
            return sum(pipe.execute())

    def _queue_bind(self, *args: Any) -> None:
        self.with_repair(lambda: super(Channel, self)._queue_bind(*args))

    def get_table(self, exchange: str) -> Any:
        return self.with_repair(lambda: super(Channel, self).get_table(exchange))

    def with_repair(self, call: Callable[[], T], queue: str | None = None) -> T:
        """The call's result. When the call meets a key of another type, the keys of this queue and of all that were
        declared are repaired, and the call is repeated."""
        try:
            return call()
        except ResponseError as e:
            self._repair(e, queue)
            return call()

    def _repair(self, error: ResponseError, queue: str | None = None) -> None:
        """Rename every key of another type. Raises the error again when no key has one, and ConnectionError, a moment
        later, when Redis takes no writes."""
        repaired = False
        queues = [*self.state.queue_index, *([queue] if queue else [])]
        with self.conn_or_acquire() as client:
            for name, key, kind in self._keys(queues):
                found = client.type(key).decode()
                if found not in (kind, "none"):
                    aside = f"{key}.damaged"
                    client.rename(key, aside)
                    if kind == "set":  # without it nothing is routed here
                        self._queue_bind(name, name, "", name)
                    log.error("the broker's key %s was a %s where a %s belongs; it is now %s", key, found, kind, aside)
                    repaired = True
        if repaired:
            return
        if refuses_writes(error):
            # As for a lost connection, Celery starts again, at once and each time with a line in the log.
            time.sleep(REFUSED_PAUSE_S)
            raise ConnectionError(f"the broker takes no writes: {error}") from error
        raise error

    def _keys(self, queues: Iterable[str]) -> Iterator[tuple[str, str, str]]:
        """These queues' keys at the broker: the queue, the key, and the type it must have."""
        for queue in queues:
            for priority in self.priority_steps:
                yield queue, self._q_for_pri(queue, priority), "list"
            for key in (self.keyprefix_queue, self.keyprefix_binding_permanent):
                yield queue, key % queue, "set"

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        try:
            found: dict[str, Any] = super()._connparams(asynchronous)
        except AttributeError as e:
            # A thread that publishes or acknowledges after the main thread has closed the connection.
            if self.connection is None or self.connection.client is None:
                raise ConnectionError("the connection to the broker is closed") from e
            raise
        # A PING before a command would wait as long for a dead connection as the command itself. Sent before BRPOP it
        # could reconnect where the event loop does not see it.
        return found | {"health_check_interval": 0}

    def _basic_cancel(self, consumer_tag: str) -> Any:
        cancelled = super()._basic_cancel(consumer_tag)
        if not self.active_queues:
            self._stop_waiting()
        return cancelled

    def close(self) -> None:
        self._stop_waiting()
        super().close()

    def _stop_waiting(self) -> None:
        """End the wait for a message, for which kombu would wait itself. A message that has come goes back."""
        waiting: Any = self._in_poll
        if not waiting:
            return
        try:
            if waiting.can_read(timeout=0) and (found := self.client.parse_response(waiting, "BRPOP")):
                with self.conn_or_acquire() as client:
                    client.rpush(*found)
        except (*CONNECTION_ERRORS, ResponseError) as e:
            log.info("a message may be lost (%s): the ledger publishes it again", type(e).__name__)
        finally:
            waiting.disconnect()


class Transport(redis.Transport):
    """Drops messages that are not to play a job."""

    Channel = Channel
    brpop_timeout = WAIT_S

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, LoopOfKnownSockets(loop))

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            super()._deliver(message, queue)
        except NoJob as e:
            shown = repr(message)
            log.error("dropping a broker message that is no job of rollq: %s: %.*s", e, LOGGED_BYTES, shown)


class LoopOfKnownSockets:
    """Celery's event loop, for kombu, which adds its sockets again before each wait. A known one costs no system call.

    That is safe: kombu registers a new socket with the poller itself, and takes a paused one out of the loop.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        if self._loop.readers.get(fd) != (callback, args):
            self._loop.add_reader(fd, callback, *args)


class SentinelChannel(Channel, redis.SentinelChannel):
    """The same for a Redis that Sentinels watch."""


class SentinelTransport(Transport, redis.SentinelTransport):
    """The same for a Redis that Sentinels watch."""

    Channel = SentinelChannel
