"""A lock in Redis, shared by all processes that give it the same name.

Its holder renews it. When the holder dies, the lock is free after LOCK_S. It knows nothing of what
it protects.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from rollq.ledger.keys import LOCKS
from rollq.servers.connection import RetryLoop
from rollq.servers.refusal import translated

log = logging.getLogger(__name__)

LOCK_S = 15.0
POLL_S = 0.5


class RedisLock:
    """A lock. Calling it gives the context that holds it; `check` may raise while the
    call waits.
    """

    def __init__(self, client: "redis.Redis", name: str) -> None:
        self._client: Any = client
        self._key = (
            LOCKS + hashlib.sha256(name.encode()).hexdigest()[:16]
        )  # addresses may hold passwords

    @contextmanager
    def __call__(self, check: Callable[[], None]) -> Iterator[None]:
        lock = self._client.lock(self._key, timeout=LOCK_S, thread_local=False)

        def pause(seconds: float) -> None:
            check()
            time.sleep(min(seconds, POLL_S))

        retry = RetryLoop(wait=pause, relogin=True)
        while not retry(lambda: self._acquire(lock)):
            pause(POLL_S)
        released = threading.Event()
        renewer = threading.Thread(
            target=_renew, args=(lock, released), name="rollq-lock", daemon=True
        )
        renewer.start()
        try:
            yield
        finally:
            released.set()
            renewer.join(LOCK_S / 3)  # the caller may close the client next
            with suppress(redis.RedisError):  # it was lost, or Redis is away: then it expires
                lock.release()

    def _acquire(self, lock: Any) -> bool:
        try:
            return bool(lock.acquire(blocking=False))
        except redis.ResponseError as e:
            raise translated(e, self._key) from e


def _renew(lock: Any, released: threading.Event) -> None:
    while not released.wait(LOCK_S / 3):
        try:
            lock.reacquire()
        except Exception as e:
            # Whatever this try raised, the next one may still be in time.
            log.warning("cannot renew the lock on %s: %s: %s", lock.name, type(e).__name__, e)
