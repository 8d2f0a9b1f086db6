"""Who kills engines: requests that saw two deaths of the engine are suspects, and a suspect is sent alone.

When an engine dies, everything in flight there dies with it, and nothing says who did it. So one death blames nobody.
A request that was in flight at two is sent again with nothing beside it; whoever is alone in flight at two further
deaths is poison. While there are suspects everybody else waits, so nothing here costs time as long as engines live. It
knows nothing of HTTP or of jobs.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from rollq.errors import JobFailure
from rollq_worker.engine.availability import Standstill

log = logging.getLogger(__name__)

DEATHS = 2
"""Of the engine under a request, after which it is a suspect; and alone, after which it is poison."""
CHECK_S = 0.5
"""At most this long between two calls of `check` while waiting."""

Check = Callable[[], None]


class Poison(JobFailure):
    """This job kills engines: it is dead at once, whatever its budget."""


@dataclass(eq=False)
class Suspect:
    """One request that must go alone."""

    alone: int = 0
    """Deaths at which nothing else was in flight."""
    answered: int = 0
    """Answers that others had got by the first of them."""


class Quarantine:
    """The gate that every request of a process passes.

    `turn` is entered around a suspect's request: a lock that several workers of one engine share.
    """

    def __init__(
        self, standstill: Standstill, turn: Callable[[Check], AbstractContextManager[None]] | None = None
    ) -> None:
        self._standstill = standstill
        self._turn = turn or (lambda check: nullcontext())
        self._changed = threading.Condition()
        self._inside = 0
        self._suspects: deque[Suspect] = deque()
        self._answered = 0

    @contextmanager
    def suspect(self) -> Iterator[Suspect]:
        """Be one from now on, so that everybody else waits; deadlines stand still meanwhile."""
        suspect = Suspect()
        with self._changed:
            self._suspects.append(suspect)
            if len(self._suspects) == 1:
                self._standstill.begin()
                log.warning("engines died with the same requests in flight: sending those one at a time")
        try:
            yield suspect
        finally:
            with self._changed:
                self._suspects.remove(suspect)
                if not self._suspects:
                    self._standstill.end()
                self._changed.notify_all()

    @contextmanager
    def passing(self, suspect: Suspect | None, check: Check) -> Iterator[None]:
        """In flight: beside others, or alone for a suspect. `check` is called while waiting and may raise."""
        if suspect is None:
            with self._in(lambda: not self._suspects, check):
                yield
        else:
            with self._in(lambda: self._suspects[0] is suspect and not self._inside, check), self._turn(check):
                yield

    @contextmanager
    def _in(self, free: Callable[[], bool], check: Check) -> Iterator[None]:
        with self._changed:
            while not free():
                self._changed.wait(CHECK_S)
                check()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._suspects:
                    self._changed.notify_all()

    def answered(self) -> None:
        """A request got its answer: the engine does live for others."""
        self._answered += 1  # read only to see it move, so that it needs no lock

    def died(self, suspect: Suspect, key: str) -> None:
        """The engine died with this suspect alone in flight. Raises Poison when that settles it."""
        if not suspect.alone:
            suspect.answered = self._answered
        suspect.alone += 1
        log.warning("%s: alone in flight when the engine died, time %d", key, suspect.alone)
        with self._changed:
            others = len(self._suspects) > 1
            # Behind the others: should they die as well, then it is the engine, and nobody is to blame.
            self._suspects.remove(suspect)
            self._suspects.append(suspect)
            self._changed.notify_all()
        if suspect.alone >= DEATHS and (self._answered > suspect.answered or not others):
            raise Poison(f"{key}: this job kills engines: it was alone in flight when one died, {suspect.alone} times")
