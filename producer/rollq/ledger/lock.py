"""One at a time, among all processes that name the same thing: a lock in Redis that its holder keeps alive.

A holder that dies lets go within TURN_S. It knows nothing of what is done in a turn.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from rollq.ledger.keys import TURN

log = logging.getLogger(__name__)

TURN_S = 15.0
POLL_S = 0.5


class Turn:
    """Called with a `check` that may raise while it waits, it is the context of one turn."""

    def __init__(self, client: "redis.Redis", what: str) -> None:
        self._client: Any = client
        self._key = TURN + hashlib.sha256(what.encode()).hexdigest()[:16]  # addresses may hold passwords

    @contextmanager
    def __call__(self, check: Callable[[], None]) -> Iterator[None]:
        lock = self._client.lock(self._key, timeout=TURN_S, thread_local=False)
        while not _take(lock):
            check()
            time.sleep(POLL_S)
        over = threading.Event()
        keeper = threading.Thread(target=_keep, args=(lock, over), name="rollq-turn", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join(TURN_S / 3)  # who leaves may close the client next
            with suppress(redis.RedisError):  # it may have been lost, or Redis be away: it expires
                lock.release()


def _take(lock: Any) -> bool:
    try:
        return bool(lock.acquire(blocking=False))
    except redis.RedisError as e:
        log.warning("waiting for a turn: %s", type(e).__name__)
        return False


def _keep(lock: Any, over: threading.Event) -> None:
    while not over.wait(TURN_S / 3):
        try:
            lock.reacquire()
        except Exception as e:
            # Whatever Redis throws, the next round may be in time.
            log.warning("cannot keep a turn: %s: %s", type(e).__name__, e)
