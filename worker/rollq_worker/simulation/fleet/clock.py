"""A simulated clock, and what has limited speed on it: single-threaded servers, and processes that share cores.

Events happen in the order of their times, and those of one time in the order in which they were entered. It knows
nothing of rollouts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Act = Callable[[Any], None]
SLEPT_S = 0.003
"""After a longer pause a process finds other data in the caches."""
FOREIGN_S = 0.005
"""CPU of other programs at a time."""
QUANTUM_S = 0.0014
"""For so long a process keeps a core for which others wait: Linux's slice on two cores, as measured."""


class Clock:
    """Runs events until none is left, or until it is stopped."""

    __slots__ = ("_events", "_number", "_stopped", "now", "passed")

    def __init__(self) -> None:
        self.now = 0.0
        self.passed = 0
        """Number of events that have happened."""
        self._events: list[tuple[float, int, Act, Any]] = []
        self._number = 0
        self._stopped = False

    def at(self, time: float, act: Act, subject: Any = None) -> None:
        """Have `act(subject)` happen at that time. A time that has passed is now."""
        self._number += 1
        heappush(self._events, (time if time > self.now else self.now, self._number, act, subject))

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        events = self._events
        while events and not self._stopped:
            self.now, _, act, subject = heappop(events)
            self.passed += 1
            act(subject)


class Server:
    """One single-threaded server with an unbounded queue, first come first served: Redis, the broker."""

    __slots__ = ("_clock", "_free_at", "_wake_s", "busy_s")

    def __init__(self, clock: Clock, wake_s: float = 0.0) -> None:
        """`wake_s`: what a call costs more after a pause."""
        self._clock, self._wake_s = clock, wake_s
        self._free_at = self.busy_s = 0.0

    def serve(self, service_s: float, delay_s: float, act: Act, subject: Any = None) -> None:
        """Have `act(subject)` happen once the call is served, and the answer has travelled for `delay_s`."""
        self.load(service_s)
        self._clock.at(self._free_at + delay_s, act, subject)

    def load(self, service_s: float) -> None:
        """A call for which nothing waits."""
        now = self._clock.now
        if now - self._free_at > SLEPT_S:
            service_s += self._wake_s
        self._free_at = (self._free_at if self._free_at > now else now) + service_s
        self.busy_s += service_s


class Cores:
    """Cores that processes share. A process that has work waits for a core, first come first served. It keeps the core
    while it has work and no other process waits, and for QUANTUM_S where one does. Between two processes the core
    stands still for `handover_s`."""

    __slots__ = ("_clock", "_free", "_handover_s", "_waiting", "count", "handovers")

    def __init__(self, clock: Clock, count: int, handover_s: float = 0.0) -> None:
        self._clock, self._handover_s = clock, handover_s
        self._free = self.count = count
        self._waiting: deque[Process] = deque()
        self.handovers = 0

    def process(self, wake_s: float = 0.0, switch_s: float = 0.0) -> Process:
        """What work costs more after a pause. `wake_s`: on a core that was free; `switch_s`: on one that another
        process has just left."""
        return Process(self._clock, self, wake_s, switch_s)

    def disturb(self, cores: float) -> None:
        """From now on other programs want so many cores."""
        count = math.ceil(cores)
        for _ in range(count):
            Foreign(self._clock, self.process(), FOREIGN_S * count / cores).work()

    def want(self, process: Process) -> None:
        if self._free:
            self._free -= 1
            process.begin(after_another=False)
        else:
            self._waiting.append(process)

    def end(self, process: Process, wants_more: bool) -> None:
        """A slice of the process has ended."""
        if wants_more and (not self._waiting or self._clock.now - process.began_at < QUANTUM_S):
            process.go(0.0)
            return
        if wants_more:
            self._waiting.append(process)
        if self._waiting:
            self.handovers += 1
            self._clock.at(self._clock.now + self._handover_s, _begin_after_another, self._waiting.popleft())
        else:
            self._free += 1


class Process:
    """A process of which one thread runs at a time, as with Python's interpreter lock: its slices of work queue up."""

    __slots__ = (
        "_active", "_clock", "_cores", "_ended_at", "_slices", "_switch_s", "_wake_s", "began_at", "busy_s", "switches",
        "wakes",
    )  # fmt: skip

    def __init__(self, clock: Clock, cores: Cores, wake_s: float, switch_s: float) -> None:
        self._clock = clock
        self._cores = cores
        self._wake_s, self._switch_s = wake_s, switch_s
        self._slices: deque[tuple[float, Act, Any]] = deque()
        self._active = False
        self.busy_s = self.began_at = 0.0
        self._ended_at = -math.inf
        self.wakes = self.switches = 0
        """How often it began after a pause: on a free core, and on one that another process had just left."""

    def run(self, seconds: float, act: Act, subject: Any = None) -> None:
        """Have `act(subject)` happen after that much work."""
        self._slices.append((seconds, act, subject))
        if not self._active:
            self._active = True
            self._cores.want(self)

    def begin(self, *, after_another: bool) -> None:
        """It gets a core, which was free or which another process has just left."""
        self.began_at = self._clock.now
        if self._clock.now - self._ended_at <= SLEPT_S:
            self.go(0.0)
        elif after_another:
            self.switches += 1
            self.go(self._switch_s)
        else:
            self.wakes += 1
            self.go(self._wake_s)

    def go(self, more_s: float) -> None:
        """Do the next slice of its work, which costs so much more."""
        seconds, act, subject = self._slices.popleft()
        seconds += more_s
        self.busy_s += seconds
        self._clock.at(self._clock.now + seconds, self._end, (act, subject))

    def _end(self, slice: tuple[Act, Any]) -> None:
        self._active, self._ended_at = bool(self._slices), self._clock.now
        self._cores.end(self, self._active)
        act, subject = slice
        act(subject)


def _begin_after_another(process: Process) -> None:
    process.begin(after_another=True)


class Foreign:
    """Another program: it works for FOREIGN_S, again and again."""

    __slots__ = ("_clock", "_every_s", "_process")

    def __init__(self, clock: Clock, process: Process, every_s: float) -> None:
        self._clock, self._process, self._every_s = clock, process, every_s

    def work(self, _: object = None) -> None:
        due = self._clock.now + self._every_s
        self._process.run(FOREIGN_S, lambda _: self._clock.at(due, self.work))
