"""A clock that tests advance, so that they wait for nothing and a slow machine changes nothing."""

import time
from typing import Any


class Clock:
    """Replaces a module's `time`: real, plus the seconds in `ahead`."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
