"""Availability of an engine, as its client has seen it, for all threads of a process.

An outage is logged once, when it lasts. It knows nothing of HTTP.
"""

import logging
import threading
import time

log = logging.getLogger(__name__)

LOG_AFTER_S = 2.0
"""Seconds; shorter outages are not logged."""


class OutageClock:
    """Counts the seconds in which nothing could be sampled, whatever the reason. Overlapping
    outages count once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._since = 0.0
        self._total = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far, the present outage included."""
        with self._lock:
            if not self._running:
                return self._total
            return self._total + time.monotonic() - self._since

    @property
    def running(self) -> bool:
        return self._running > 0

    def start(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._since = time.monotonic()

    def stop(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._total += time.monotonic() - self._since


class AllAway:
    """Runs the clock while every engine of a process is away, or none is known. It is the clock of
    their outages.
    """

    def __init__(self, clock: OutageClock, engines: int) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._engines = engines
        self._away = 0
        self._running = False
        self.count(0)

    def count(self, more: int) -> None:
        """Counts so many more engines, or fewer."""
        with self._lock:
            self._engines += more
            self._run()

    def start(self) -> None:
        """One engine is away."""
        with self._lock:
            self._away += 1
            self._run()

    def stop(self) -> None:
        """One engine is back."""
        with self._lock:
            self._away -= 1
            self._run()

    def _run(self) -> None:
        running = self._running
        self._running = self._away >= self._engines
        if self._running and not running:
            self._clock.start()
        elif running and not self._running:
            self._clock.stop()


class Availability:
    """The state of one engine: up until a request is refused, and again once a request is answered.

    A server that is ready may still refuse requests (a full queue, a wrong key). It is worth
    another request then, so it is up, but the outage lasts until a request is answered.
    """

    def __init__(self, name: str, clock: OutageClock | AllAway) -> None:
        self.up = True
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None  # monotonic time at which the present outage began
        self._unreachable = False
        self._refused = False
        self._logged = False

    def mark_down(self, reason: str, *, unreachable: bool = False, refused: bool = False) -> None:
        """The engine takes no requests. `unreachable`: the engine did not answer, so the next one
        may be another. `refused`: a server refused a request, even if it calls itself ready.
        """
        with self._lock:
            self.up = False
            self._unreachable |= unreachable
            self._refused |= refused
            if self._since is None:
                self._since = time.monotonic()
                self._clock.start()
            if self._logged or time.monotonic() - self._since < LOG_AFTER_S:
                return
            self._logged = True
        log.warning("the engine at %s takes no requests (%s): waiting for it", self._name, reason)

    def retire(self) -> None:
        """The process has given this engine up for good: its outage counts no more."""
        with self._lock:
            if self._since is not None:
                self._clock.stop()
            self._clock = OutageClock()

    def mark_ready(self) -> bool:
        """The server reports that it takes requests. True as for `mark_up`."""
        with self._lock:
            self.up = True
            if self._refused:
                return False
        return self.mark_up()

    def mark_up(self) -> bool:
        """A request was answered. True when the engine had been unreachable, so that facts known
        about it are stale.
        """
        with self._lock:
            self.up = True
            since = self._since
            self._since = None
            if since is None:
                return False
            self._clock.stop()
            seconds = time.monotonic() - since
            unreachable = self._unreachable
            logged = self._logged
            self._unreachable = self._refused = self._logged = False
        if logged:
            log.warning("the engine at %s is back after %.1f s", self._name, seconds)
        return unreachable
