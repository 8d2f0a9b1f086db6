"""Whether an engine takes requests, as its client has seen it: shared by all threads of a process.

Outages are logged once, when they last. It knows nothing of HTTP.
"""

import logging
import threading
import time

log = logging.getLogger(__name__)

SILENT_S = 2.0
"""Shorter outages are not worth a line."""


class Standstill:
    """Seconds in which nothing could go on, whatever stood in the way; what overlaps counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._since = 0.0
        self._total = 0.0

    @property
    def seconds(self) -> float:
        """So far, the present one included."""
        with self._lock:
            return self._total + (time.monotonic() - self._since if self._depth else 0.0)

    def begin(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._since = time.monotonic()

    def end(self) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._total += time.monotonic() - self._since


class Availability:
    """Up until a request is refused; up again once one is answered."""

    def __init__(self, name: str, standstill: Standstill | None = None) -> None:
        self._name = name
        self._standstill = standstill or Standstill()
        self._lock = threading.Lock()
        self._since: float | None = None  # monotonic time at which the present outage began
        self._gone = False
        self._told = False

    @property
    def up(self) -> bool:
        return self._since is None

    @property
    def outage_s(self) -> float:
        """Seconds of all outages so far, the present one included."""
        return self._standstill.seconds

    def lost(self, reason: str, *, gone: bool = False) -> None:
        """A request was refused. `gone`: there was nobody there at all, so whoever comes back may be another engine."""
        with self._lock:
            self._gone |= gone
            if self._since is None:
                self._since = time.monotonic()
                self._standstill.begin()
            if self._told or time.monotonic() - self._since < SILENT_S:
                return
            self._told = True
        log.warning("the engine at %s takes no requests (%s): waiting for it", self._name, reason)

    def found(self) -> bool:
        """A request was answered. True when the engine had been gone, so that what was known of it is stale."""
        if self.up:
            return False
        with self._lock:
            since, self._since = self._since, None
            if since is None:
                return False
            self._standstill.end()
            seconds = time.monotonic() - since
            gone, told = self._gone, self._told
            self._gone = self._told = False
        if told:
            log.warning("the engine at %s is back after %.1f s", self._name, seconds)
        return gone
