"""The requests of this process that are under way, and how a wait for one of them is ended from outside.

A thread that waits for a reply cannot look up: another one shuts its socket under it. It knows nothing of what is sent.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollq_worker.engine.errors import Cut
from rollq_worker.engine.http import Wires


@dataclass(eq=False)
class Flight:
    """One request under way."""

    key: str
    """The job it is for."""
    thread: int = field(default_factory=threading.get_ident)
    since: float = field(default_factory=time.monotonic)
    cut: Cut | None = None
    """Why its wait was ended, when it was."""


class Flights:
    """All of them, by request id."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._lock = threading.Lock()
        self._now: dict[str, Flight] = {}

    @contextmanager
    def flight(self, rid: str, key: str) -> Iterator[Flight]:
        """This thread's request `rid` is under way."""
        flight = Flight(key)
        with self._lock:
            self._now[rid] = flight
        try:
            yield flight
        finally:
            with self._lock:
                del self._now[rid]

    def rids(self) -> list[str]:
        with self._lock:
            return list(self._now)

    def cut(self, key: str | None, *, hung: bool) -> int:
        """End the wait for that job's reply (None: for all). Returns how many have been ended."""
        with self._lock:
            flights = [flight for flight in self._now.values() if key in (None, flight.key)]
            for flight in flights:
                before, flight.cut = flight.cut, Cut(hung)  # before its thread wakes, which looks why
                if not self._wires.cut(flight.thread):
                    flight.cut = before
        return sum(flight.cut is not None for flight in flights)

    def longest_s(self) -> float:
        """For how long the one has been under way that has been longest."""
        with self._lock:
            return max((time.monotonic() - flight.since for flight in self._now.values()), default=0.0)
