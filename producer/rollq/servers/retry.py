"""The loop that makes a call again while Redis is away or takes no writes.

Everything that rollq sends may be sent twice, and a refused write changed nothing. redis-py's own
retries are off, because it nests them, so that their times multiply. Loops do not nest either: a
loop inside another loop of the same thread makes its call once.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

import redis
from redis.backoff import EqualJitterBackoff
from redis.exceptions import AuthenticationError
from redis.sentinel import MasterNotFoundError

from rollq.errors import RollqError, Unwritable
from rollq.servers.refusal import of_sentinels, unreached

log = logging.getLogger("rollq")

T = TypeVar("T")

CONNECTION_ERRORS = (redis.ConnectionError, redis.TimeoutError)
"""Exceptions that a call raises when it gives up."""
BACKOFF = EqualJitterBackoff(cap=2.0, base=0.1)
"""Pauses between two tries. The jitter keeps threads that wait together from coming back together.
"""
MOST_FAILURES = 10
"""Number of failures after which pauses are as long as they get. redis-py computes 2**failures,
which is no float from 1024 on.
"""
WARN_EVERY_S = 30.0
FIRST_S = 5.0
"""Seconds without an answer after which an address counts as wrong that never answered this
process.
"""
SHORT_S = 2.0
"""Outages shorter than this are not logged."""


class NoRedis(RollqError, redis.ConnectionError):
    """No server has ever answered at this address."""


HOPELESS = (NoRedis, AuthenticationError)
"""Errors that retrying cannot fix: the address or the login is wrong."""

_thread = threading.local()
"""`in_loop`: the thread is inside a loop."""


@dataclass(slots=True, kw_only=True)
class RetryLoop:
    """Makes a call again, under one policy. All calls of one loop together log one warning in
    WARN_EVERY_S.
    """

    for_s: float = inf
    """Seconds after which the loop gives up, at most one pause and one try later. 0 for a single
    try.
    """
    wait: Callable[[float], object] = time.sleep
    """Called with the seconds between two tries. It may raise to end the loop."""
    unwritable: bool = True
    """Also waits for a Redis that takes no writes."""
    relogin: bool = False
    """Also waits for a Redis that refuses the login."""
    _warned: float = field(default=-inf, init=False)

    def __call__(self, call: Callable[[], T], for_s: float = inf) -> T:
        """The call's result. Raises Unwritable or CONNECTION_ERRORS after `for_s` seconds, if that
        is less than the loop's own, and HOPELESS at once.
        """
        if getattr(_thread, "in_loop", False):
            return call()
        _thread.in_loop = True
        try:
            return self._repeat(call, for_s)
        finally:
            _thread.in_loop = False

    def _repeat(self, call: Callable[[], T], for_s: float) -> T:
        began = time.monotonic()
        failures = 0
        while True:
            try:
                return call()
            except (Unwritable, *CONNECTION_ERRORS) as e:
                left_s = began + min(for_s, self.for_s) - time.monotonic()
                if left_s <= 0 or not self._may_pass(e):
                    raise
            failures = min(failures + 1, MOST_FAILURES)
            self.wait(min(BACKOFF.compute(failures), left_s))

    def _may_pass(self, error: Exception) -> bool:
        if isinstance(error, Unwritable):
            if self.unwritable:
                self._warn(error)
            return self.unwritable
        return not isinstance(error, NoRedis if self.relogin else HOPELESS)

    def _warn(self, error: Unwritable) -> None:
        now = time.monotonic()
        if now - self._warned >= WARN_EVERY_S:
            self._warned = now
            why = str(error).rstrip(".")
            log.warning("%s. Nothing is lost; trying again until it takes writes", why)


def retry(call: Callable[[], T], for_s: float = inf) -> T:
    """A RetryLoop for a single call."""
    return RetryLoop()(call, for_s)


CLOSE_S = 2.0
"""Seconds that closing waits for Redis."""


def try_briefly(call: Callable[[], object]) -> bool:
    """True if the call returned within CLOSE_S. It is made again meanwhile. Raises nothing."""
    done = threading.Event()
    repeat = RetryLoop(for_s=CLOSE_S, unwritable=False)

    def run() -> None:
        with suppress(Exception):
            repeat(call)
            done.set()

    thread = threading.Thread(target=run, name="rollq-close", daemon=True)
    thread.start()
    thread.join(CLOSE_S)
    return done.is_set()


class Address:
    """Watches whether calls reach the server at an address, for all threads of the process: a wait
    in silence looks like a program that hangs.
    """

    def __init__(self, name: str) -> None:
        """`name`: without a password."""
        self.name = name

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's result. Raises NoRedis for a server that has never answered."""
        began = time.monotonic()
        try:
            result = call()
        except MasterNotFoundError as e:
            error = of_sentinels(e)  # the text of the cause may show passwords
            self._report(error, began)
            raise error from None
        except CONNECTION_ERRORS as e:
            self._report(e, began)
            raise
        _answered.add(self.name)
        _away_since.pop(self.name, None)
        return result

    def _report(self, error: redis.RedisError, began: float) -> None:
        """Logs an outage that lasts. `began`: when the call did. A single try may take long."""
        now = time.monotonic()
        if isinstance(error, redis.BusyLoadingError):  # it is there, and reads its file
            _answered.add(self.name)
        away_s = now - _away_since.setdefault(self.name, began)
        if isinstance(error, AuthenticationError):
            return
        if self.name not in _answered and away_s >= FIRST_S:
            raise NoRedis(unreached(self.name, error)) from error
        if away_s >= SHORT_S and now - _warned.get(self.name, -inf) >= WARN_EVERY_S:
            _warned[self.name] = now
            log.warning(
                "Redis at %s does not answer (%s); trying again. What it had on its disk is not "
                "lost",
                self.name,
                str(error).rstrip("."),
            )


_answered: set[str] = set()
"""Addresses that have answered."""
_away_since: dict[str, float] = {}
"""Time at which the first call began that no answer has followed, by address."""
_warned: dict[str, float] = {}
"""Time of the last warning that an address is away."""
