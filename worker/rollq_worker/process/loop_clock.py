"""Says whether Celery's event loop still turns.

A main thread that waits for ever takes no messages, while all other threads of the worker are well. So the loop notes
the time, and the health check depends on it.
"""

import time
from typing import Any

TICK_S = 1.0
"""Seconds between two notes."""
LIMIT_S = 30.0
"""Seconds without a note after which the loop counts as stuck. A worker that waits for its broker has none either."""


class LoopClock:
    """When the loop last turned. It counts as turning while the worker starts."""

    def __init__(self) -> None:
        self._ticked = time.monotonic()

    def start(self, hub: Any) -> None:
        """Note the time from now on, in this loop (Celery's hub). It goes on after lost connections."""
        hub.call_repeatedly(TICK_S, self._tick)

    def is_alive(self) -> bool:
        return time.monotonic() - self._ticked < LIMIT_S

    def _tick(self) -> None:
        self._ticked = time.monotonic()
