"""Waiting while Redis takes no writes: out of memory, a full disk, a replica that was just promoted.

Nothing was changed by a refused write, so it is simply tried again; connections that fail are `connection`'s business.
"""

import logging
import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

import redis

from rollq.errors import LedgerError, Unwritable

log = logging.getLogger("rollq")

T = TypeVar("T")

REFUSING = re.compile(
    r"not allowed when used memory|(?:^|[-\s])(?:MISCONF|READONLY|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY) "
)
"""What Redis says, by itself or through a script, when it takes no writes."""
FIRST_S = 0.2
LONGEST_S = 5.0
SAID_AGAIN_S = 30.0
"""The warning is repeated so often, at most."""


class Patience:
    """Of one who asks again and again: all of its calls together warn every half a minute at most."""

    def __init__(self) -> None:
        self._said = float("-inf")

    def __call__(
        self, call: Callable[[], T], for_s: float = float("inf"), wait: Callable[[float], object] = time.sleep
    ) -> T:
        """Call until Redis takes it, with backoff and a warning. Raises Unwritable after `for_s` seconds of refusals.

        `wait(seconds)` may raise to stop earlier.
        """
        pause, deadline = FIRST_S, time.monotonic() + for_s
        while True:
            try:
                return call()
            except Unwritable as e:
                now = time.monotonic()
                if now >= deadline:
                    raise
                if now - self._said >= SAID_AGAIN_S:
                    log.warning("%s. Nothing is lost; trying again until it takes writes", str(e).rstrip("."))
                    self._said = now
            wait(min(pause * random.uniform(0.75, 1.25), max(0.0, deadline - time.monotonic())))
            pause = min(LONGEST_S, pause * 1.6)


def patiently(call: Callable[[], T], for_s: float = float("inf"), wait: Callable[[float], object] = time.sleep) -> T:
    """The same for a single call."""
    return Patience()(call, for_s, wait)


def refuses_writes(error: Exception) -> bool:
    """Whether Redis takes no writes at all for now, rather than this one. redis-py drops some codes for classes."""
    if isinstance(error, redis.OutOfMemoryError | redis.ReadOnlyError):
        return True
    return "DAMAGED" not in str(error) and bool(REFUSING.search(str(error)))


def translated(error: redis.ResponseError, what: str) -> LedgerError:
    """The same as an error of the ledger that says what was tried and, if there is one, names the key."""
    kind = Unwritable if refuses_writes(error) else LedgerError
    return kind(f"{what}: {_explain(str(error))}")


def _explain(error: str) -> str:
    """A script's own complaint, or why there are no writes, without Redis's wrapping."""
    if "not allowed when used memory" in error:
        return "Redis is out of memory (used memory > 'maxmemory')"
    if "DAMAGED" not in error and (why := REFUSING.search(error)):
        return error[why.start() :].lstrip(" -")
    found = re.search(r"DAMAGED (\S+) (.*?)(?: script:|$)", error)
    return f"{found[1]} {found[2]}. The workers put it right within seconds." if found else error
