"""Waiting for an event instead of a time, so that a slow machine changes nothing."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Returns once the condition is true; fails when it has not become true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not become true within {seconds:g} s"
        time.sleep(0.01)
