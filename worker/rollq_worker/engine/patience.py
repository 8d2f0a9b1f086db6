"""How an engine is waited for: with growing pauses, jittered so that hundreds of episodes do not come back at once."""

import random
import time
from collections.abc import Callable

CHECK_S = 0.5
"""At most this long between two calls of `check` while waiting."""
BACKOFF_S = (0.1, 2.0)
"""First and longest wait between two tries, before jitter."""
RESET_BACKOFF_S = (1.0, 4.0)
"""The same after a connection that broke: a dying SGLang resets them some 5 s before its port closes."""


def backoff(tries: int, *, reset: bool = False) -> float:
    """Seconds to wait after that many tries; `reset`: the last one hung up."""
    first, longest = RESET_BACKOFF_S if reset else BACKOFF_S
    return min(longest, first * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)


def wait(seconds: float, check: Callable[[], None]) -> None:
    """Wait that long; `check` is called meanwhile, and raises to end it."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, CHECK_S))
    check()
