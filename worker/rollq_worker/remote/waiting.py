"""Pauses between tries, during which an attempt can still be stopped."""

import random
import time
from collections.abc import Callable

CHECK_S = 0.5
"""Longest time in seconds between two calls of `check`."""


def backoff(tries: int, first_s: float, longest_s: float) -> float:
    """Seconds to pause after that many tries. They double, with jitter so that threads do not come
    back together.
    """
    return min(longest_s, first_s * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)


def wait(seconds: float, check: Callable[[], None]) -> None:
    """Sleeps that long. `check` is called meanwhile, and raises to end the sleep."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, CHECK_S))
    check()
