"""Finds the requests that kill engines.

When an engine dies, everything in flight dies with it, and nothing tells which request was the
cause. So one death blames no request. A request that was in flight at two deaths is a suspect and
is sent alone. A suspect that was alone in flight at two further deaths is poison if the engine
works for others, which are tried between those two deaths. Engines that live have no suspects, and
lose no time. Deaths count over all engines of the process, so a request that goes from one to the
next is found. It knows nothing of HTTP.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from rollq.errors import JobFailure
from rollq_worker import waiting
from rollq_worker.engine.availability import OutageClock

log = logging.getLogger(__name__)

DEATHS = 2
"""Number of deaths after which a request in flight is a suspect, and a suspect alone in flight is
poison.
"""
OTHERS_S = 10.0
"""Seconds for which a suspect waits for others that should be tried first and have not come. They
count from the last request in flight there. A request whose engine died asks every two to four
seconds whether it is back.
"""

Check = Callable[[], None]
SharedLock = Callable[[Check], AbstractContextManager[None]]


class PoisonJob(JobFailure):
    """This job kills engines. It is dead at once, whatever its budget."""


@dataclass(eq=False)
class Suspect:
    """One request that must be sent alone."""

    engine: str
    """The engine where it is, or where it was last."""
    waits: bool = False
    """Whether it waits at that engine's gate."""
    deaths: int = 0
    """Number of engines' deaths while only this request was in flight there."""
    killed: set[str] = field(default_factory=set)
    """Those engines."""
    answered: Counter[str] = field(default_factory=Counter)
    """Number of answers of each engine by the first of those deaths."""


class Quarantine:
    """The gate that every request of a process passes, whatever its engine."""

    def __init__(self, clock: OutageClock) -> None:
        self._clock = clock
        self._lock = (
            threading.Lock()
        )  # taken in each turn, by itself because a Condition takes it four times slower
        self._changed = threading.Condition(self._lock)
        self._in_flight: Counter[str] = Counter()
        self._alone: set[str] = set()
        """Engines that have a suspect in flight."""
        self._left: dict[str, float] = {}
        """When (`time.monotonic`) a request last left each engine, while there were suspects."""
        self._suspects: list[Suspect] = []
        self._unserved = 0
        """Number of requests that an engine failed and that have no answer yet, suspects included.
        """
        self._waiting: Counter[str] = Counter()
        """Number of requests at each engine's gate, without suspects."""
        self._answered: Counter[str] = Counter()

    @contextmanager
    def unserved(self) -> Iterator[None]:
        """Register a request that an engine failed, until it has its answer. A suspect
        is one, too.
        """
        with self._changed:
            self._unserved += 1
        try:
            yield
        finally:
            with self._changed:
                self._unserved -= 1
                self._changed.notify_all()

    @contextmanager
    def suspect(self, engine: str) -> Iterator[Suspect]:
        """Register a suspect. Deadlines stand still until it leaves."""
        suspect = Suspect(engine)
        with self._changed:
            self._suspects.append(suspect)
            if len(self._suspects) == 1:
                self._clock.start()
                log.warning(
                    "engines died with the same requests in flight: sending those one at a time"
                )
        try:
            yield suspect
        finally:
            with self._changed:
                self._suspects.remove(suspect)
                if not self._suspects:
                    self._clock.stop()
                self._changed.notify_all()

    def enter(self, engine: str, suspect: Suspect | None, check: Check) -> None:
        """From now until `leave`, a request is in flight on `engine`: beside others, or alone there
        for a suspect.

        `check` is called while waiting and may raise.
        """
        with self._lock:
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
                self._left[engine] = time.monotonic()
                self._changed.notify_all()

    def answered(self, engine: str) -> None:
        """Note that a request got its answer, so the engine works for others."""
        self._answered[engine] += 1  # needs no lock: readers only look whether it grew

    def engine_died(self, suspect: Suspect, key: str) -> None:
        """Note a death with this suspect alone in flight. Raises PoisonJob when that proves it."""
        if not suspect.deaths:
            suspect.answered = self._answered.copy()
        suspect.deaths += 1
        suspect.killed.add(suspect.engine)
        log.warning("%s: alone in flight when the engine died, time %d", key, suspect.deaths)
        with self._changed:
            self._changed.notify_all()
            blamed = suspect.deaths >= DEATHS and (
                self._works_for_others(suspect) or not self._has_others(suspect)
            )
        if blamed:
            raise PoisonJob(
                f"{key}: this job kills engines: it was alone in flight when one died, "
                f"{suspect.deaths} times"
            )

    def _wait_until_free(self, engine: str, suspect: Suspect | None, check: Check) -> None:
        since = time.monotonic()
        self._waiting[engine] += suspect is None
        if suspect is not None:
            suspect.engine, suspect.waits = engine, True
        try:
            while self._suspects and not self._free(engine, suspect, since):
                self._changed.wait(waiting.CHECK_S)
                # it may ask an engine or Redis, and every request enters by this lock
                self._lock.release()
                try:
                    check()
                finally:
                    self._lock.acquire()
        finally:
            self._waiting[engine] -= suspect is None
            if suspect is not None:
                suspect.waits = False

    def _free(self, engine: str, suspect: Suspect | None, since: float) -> bool:
        here = [other for other in self._suspects if other.engine == engine]
        if suspect is None:
            return engine not in self._alone and all(map(self._lacks_proof, here))
        here.sort(key=lambda other: other.deaths)
        before = here[: here.index(suspect)]
        if self._in_flight[engine] or any(other.waits for other in before):
            return False
        # Others are tried before it is sent again: an engine that dies of them as well is broken.
        # They are on their way, but may also wait elsewhere, and for it.
        missing = bool(before) or any(other.deaths < suspect.deaths for other in self._suspects)
        if self._lacks_proof(suspect):
            missing = missing or self._waiting[engine] > 0 or self._unserved > len(self._suspects)
        return (
            not missing or time.monotonic() >= max(since, self._left.get(engine, since)) + OTHERS_S
        )

    def _lacks_proof(self, suspect: Suspect) -> bool:
        return suspect.deaths > 0 and not self._works_for_others(suspect)

    def _works_for_others(self, suspect: Suspect) -> bool:
        """Whether the engine that died of it has answered another request since. Any engine, once
        several died.
        """
        if len(suspect.killed) > 1:
            return self._answered.total() > suspect.answered.total()
        return any(self._answered[engine] > suspect.answered[engine] for engine in suspect.killed)

    def _has_others(self, suspect: Suspect) -> bool:
        """Whether there are other requests, on whatever engine."""
        served = self._in_flight.total() > 0 or self._answered.total() > suspect.answered.total()
        return served or self._unserved > 1
