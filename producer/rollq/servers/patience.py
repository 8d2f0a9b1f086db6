"""How long a call waits for a Redis that is away, and that it says so: a wait in silence looks like a program that
hangs."""

import logging
import time

import redis
from redis.backoff import EqualJitterBackoff
from redis.retry import Retry

from rollq.errors import RollqError

log = logging.getLogger("rollq")

SILENT_S = 2.0
"""Seconds without Redis that are worth no word."""
SAY_EVERY_S = 30.0
FIRST_S = 5.0
"""Seconds after which a call gives up whose server this process has never reached. Most often the address is wrong."""

_reached: set[str] = set()
"""Addresses that have answered."""
_said: dict[str, float] = {}
"""When each address was last said to be away. Hundreds of threads wait for the same one."""


class NoRedis(RollqError, redis.ConnectionError):
    """No server has ever answered at this address."""


def patience(retries: int, name: str) -> Retry:
    """That many retries of each call to the server of that name, with pauses of up to 2 s. A call raises NoRedis after
    FIRST_S if the server has never answered."""
    return Patience(name, retries)


class Patience(Retry):
    """Notes that the server of that name answers."""

    def __init__(self, name: str, retries: int) -> None:
        super().__init__(Backoff(name), retries)
        self._name = name

    def call_with_retry(self, *args, **options):  # type: ignore[no-untyped-def]
        result = super().call_with_retry(*args, **options)
        _reached.add(self._name)
        return result


class Backoff(EqualJitterBackoff):
    """Pauses between retries. A wait that lasts is logged, once in SAY_EVERY_S for all threads of the process."""

    def __init__(self, name: str) -> None:
        super().__init__(cap=2.0, base=0.1)
        self._name = name
        self._since = 0.0
        """Monotonic time of the first failure. redis-py copies the object for each connection."""

    def compute(self, failures: int) -> float:
        now = time.monotonic()
        if failures <= 1:
            self._since = now
        elif self._name not in _reached and now - self._since >= FIRST_S:
            raise NoRedis(f"no Redis at {self._name}: start one with `rollq redis`, or give another address")
        elif now - self._since >= SILENT_S and now - _said.get(self._name, float("-inf")) >= SAY_EVERY_S:
            _said[self._name] = now
            log.warning("Redis at %s does not answer; trying again. What it had on its disk is not lost", self._name)
        return float(super().compute(failures))
