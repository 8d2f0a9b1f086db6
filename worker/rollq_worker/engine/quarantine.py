"""Finds the requests that kill engines.

When an engine dies, everything in flight dies with it, and nothing tells which request was the cause. So one death
blames no request. A request that was in flight at two deaths is a suspect and is sent alone. A suspect that was alone
in flight at two further deaths is poison. While an engine has a suspect its other requests wait, so engines that live
lose no time. Between the two deaths of a suspect those others are tried, because an engine may die of every request.
Deaths count over all engines of the process, so a request that goes from one to the next is found. It knows nothing of
HTTP.
"""

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rollq.errors import JobFailure
from rollq_worker import waiting
from rollq_worker.engine.availability import OutageClock

log = logging.getLogger(__name__)

DEATHS = 2
"""Number of deaths after which a request in flight is a suspect, and a suspect alone in flight is poison."""
OTHERS_S = 5.0
"""Seconds for which a suspect waits for others of whose requests engines died, because they ask every two seconds
whether the engine is back."""

Check = Callable[[], None]
SharedLock = Callable[[Check], AbstractContextManager[None]]


class PoisonJob(JobFailure):
    """This job kills engines. It is dead at once, whatever its budget."""


@dataclass(eq=False)
class Suspect:
    """One request that must be sent alone."""

    engine: str
    """The engine where it is, or where it was last."""
    deaths: int = 0
    """Number of engines' deaths while only this request was in flight there."""
    answered: int = 0
    """Number of answers that other requests had got by the first of those deaths."""


class Quarantine:
    """The gate that every request of a process passes, whatever its engine."""

    def __init__(self, clock: OutageClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # taken in each turn, by itself because a Condition takes it four times slower
        self._changed = threading.Condition(self._lock)
        self._in_flight: defaultdict[str, int] = defaultdict(int)
        self._alone: set[str] = set()
        """Engines that have a suspect in flight."""
        self._suspects: deque[Suspect] = deque()
        self._victims = 0
        """Number of requests in flight at a death that have had no answer since, with the suspects."""
        self._waiting: Counter[str] = Counter()
        """Number of requests before each engine's gate, without suspects."""
        self._answered = 0

    @contextmanager
    def victim(self) -> Iterator[None]:
        """Register a request that was in flight at a death, until it has its answer. A suspect is one, too."""
        with self._changed:
            self._victims += 1
        try:
            yield
        finally:
            with self._changed:
                self._victims -= 1
                self._changed.notify_all()

    @contextmanager
    def suspect(self, engine: str) -> Iterator[Suspect]:
        """Register a suspect. Other requests of its engine wait, and deadlines stand still, until it leaves."""
        suspect = Suspect(engine)
        with self._changed:
            self._suspects.append(suspect)
            if len(self._suspects) == 1:
                self._clock.start()
                log.warning("engines died with the same requests in flight: sending those one at a time")
        try:
            yield suspect
        finally:
            with self._changed:
                self._suspects.remove(suspect)
                if not self._suspects:
                    self._clock.stop()
                self._changed.notify_all()

    def enter(self, engine: str, suspect: Suspect | None, check: Check) -> None:
        """From now until `leave`, a request is in flight on `engine`: beside others, or alone there for a suspect.

        `check` is called while waiting and may raise.
        """
        with self._lock:
            if suspect is not None:
                suspect.engine = engine
            if self._suspects:
                self._wait_until_free(engine, suspect, check)
                if suspect is not None:
                    self._alone.add(engine)
            self._in_flight[engine] += 1

    def leave(self, engine: str) -> None:
        """That request is in flight no more."""
        with self._lock:
            self._in_flight[engine] -= 1
            if self._suspects:
                self._alone.discard(engine)
                self._changed.notify_all()

    def _wait_until_free(self, engine: str, suspect: Suspect | None, check: Check) -> None:
        others_until = time.monotonic() + OTHERS_S
        self._waiting[engine] += suspect is None
        try:
            while self._suspects and not self._free(engine, suspect, others_until):
                self._changed.wait(waiting.CHECK_S)
                check()
        finally:
            self._waiting[engine] -= suspect is None

    def _free(self, engine: str, suspect: Suspect | None, others_until: float) -> bool:
        here = [other for other in self._suspects if other.engine == engine]
        if suspect is None:
            return engine not in self._alone and all(map(self._lacks_proof, here))
        # One that was alone at a death waits until the others have been tried: suspects on whichever engine they are,
        # and the requests that would wait here for it.
        fewest = min(other.deaths for other in self._suspects)
        first = min(here, key=lambda other: other.deaths)
        if suspect is not first or suspect.deaths != fewest or self._in_flight[engine]:
            return False
        others = self._waiting[engine] or self._victims > len(self._suspects)
        return not (self._lacks_proof(suspect) and others and time.monotonic() < others_until)

    def _lacks_proof(self, suspect: Suspect) -> bool:
        """Whether an engine died of this suspect alone, and none has answered another request since."""
        return suspect.deaths > 0 and suspect.answered == self._answered

    def answered(self) -> None:
        """Note that a request got its answer, so the engine works for others."""
        self._answered += 1  # needs no lock: readers only look whether it changed

    def engine_died(self, suspect: Suspect, key: str) -> None:
        """Note a death with this suspect alone in flight. Raises PoisonJob when that proves it."""
        if not suspect.deaths:
            suspect.answered = self._answered
        suspect.deaths += 1
        log.warning("%s: alone in flight when the engine died, time %d", key, suspect.deaths)
        with self._changed:
            others = len(self._suspects) > 1
            # It goes behind the other suspects. If the engine dies of them as well, the engine is broken.
            self._suspects.remove(suspect)
            self._suspects.append(suspect)
            self._changed.notify_all()
        if suspect.deaths >= DEATHS and (self._answered > suspect.answered or not others):
            raise PoisonJob(
                f"{key}: this job kills engines: it was alone in flight when one died, {suspect.deaths} times"
            )
