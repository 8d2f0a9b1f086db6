"""The engines of a simulated fleet. Each group is played by one engine: the one with the fewest rollouts then.

While an engine loads new weights its clock stands still. It knows nothing of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Protocol

from rollq_worker.simulation.engine_model import EngineModel, Request
from rollq_worker.simulation.fleet.clock import Clock
from rollq_worker.simulation.fleet.fleet import Engines
from rollq_worker.simulation.fleet.groups import Group


class Rollout:
    """One episode that is being played."""

    __slots__ = (
        "asked_at",
        "chain",
        "claimed_at",
        "episode",
        "group",
        "observed",
        "process",
        "prompt",
        "sample",
        "sampled",
        "tokens",
        "turn",
        "turns",
    )

    def __init__(self, group: Group, sample: int) -> None:
        self.group = group
        self.sample = sample
        self.process = 0
        """The worker process that plays it."""
        self.turn = 0
        self.turns = 0
        """Number of turns that it will have."""
        self.episode: tuple[tuple[int, int], ...] = ()
        """Sampled and observed tokens of its turns, if it is a recorded one."""
        self.sampled = self.observed = 0
        """Tokens of the turn that is being played."""
        self.prompt = self.tokens = 0
        """Tokens of its first prompt, and of all so far."""
        self.chain: tuple[tuple[object, int], ...] = ()
        """The prompt as pieces, for the engine's prefix cache."""
        self.asked_at = 0.0
        self.claimed_at = 0.0


Answered = Callable[[Rollout], None]


class EngineFleet(Protocol):
    def assign(self, group: Group) -> None: ...
    def ask(self, rollout: Rollout, sampled: int) -> None: ...
    def leave(self, rollout: Rollout) -> None: ...
    def stand_still(self, seconds: float) -> None: ...
    def busy_s(self) -> float: ...


class _Fleet:
    """What both kinds share: who plays which group, and how long each was busy."""

    def __init__(self, clock: Clock, count: int, answered: Answered) -> None:
        self._clock = clock
        self._answered = answered
        self._assigned = [0] * count
        self._running = [0] * count
        self._busy_since = [0.0] * count
        self._busy_s = 0.0

    def assign(self, group: Group) -> None:
        """Give the group to the engine with the fewest rollouts."""
        engine = self._assigned.index(min(self._assigned))
        self._assigned[engine] += group.size
        group.engine = engine

    def leave(self, rollout: Rollout) -> None:
        """The rollout has ended."""
        self._assigned[rollout.group.engine] -= 1

    def busy_s(self) -> float:
        """Seconds for which engines had requests, over all engines."""
        now = self._clock.now
        open_s = sum(now - since for since, n in zip(self._busy_since, self._running, strict=True) if n)
        return self._busy_s + open_s

    def _begun(self, engine: int) -> None:
        if not self._running[engine]:
            self._busy_since[engine] = self._clock.now
        self._running[engine] += 1

    def _ended(self, engine: int) -> None:
        self._running[engine] -= 1
        if not self._running[engine]:
            self._busy_s += self._clock.now - self._busy_since[engine]


class SteadyEngines(_Fleet):
    """Engines whose turns take a given time, however many run."""

    def __init__(self, clock: Clock, engines: Engines, answered: Answered, random: Random) -> None:
        super().__init__(clock, engines.count, answered)
        self._turn_s, self._random = engines.turn_s, random
        self._stood_still_s = 0.0

    def ask(self, rollout: Rollout, sampled: int) -> None:
        self._begun(rollout.group.engine)
        seconds = self._turn_s.draw(self._random)
        self._clock.at(self._clock.now + seconds, self._finished, (rollout, self._stood_still_s))

    def _finished(self, subject: tuple[Rollout, float]) -> None:
        rollout, before = subject
        if (late := self._stood_still_s - before) > 0:  # it stood still meanwhile
            self._clock.at(self._clock.now + late, self._finished, (rollout, self._stood_still_s))
            return
        self._ended(rollout.group.engine)
        self._answered(rollout)

    def stand_still(self, seconds: float) -> None:
        self._stood_still_s += seconds


class ModelledEngines(_Fleet):
    """Engines that batch, prefill in chunks and keep a prefix cache (engine_model.py)."""

    def __init__(self, clock: Clock, engines: Engines, answered: Answered) -> None:
        super().__init__(clock, engines.count, answered)
        assert engines.shape is not None
        self._models = [EngineModel(engines.shape) for _ in range(engines.count)]
        self._next = [inf] * engines.count
        """When each is looked at next; inf: not at all."""
        self._waiting: dict[str, Rollout] = {}
        self._late_s = 0.0
        """Seconds by which the engines' clocks are behind, because they stood still."""
        self._times = [0.0] * engines.count
        """Each engine's own time when it was last looked at."""

    def ask(self, rollout: Rollout, sampled: int) -> None:
        rid = f"{rollout.group.seq}/{rollout.sample}"
        self._waiting[rid] = rollout
        engine = rollout.group.engine
        self._begun(engine)
        key = (rid, rollout.turn)
        self._models[engine].submit(Request(rid, rollout.chain, key, sampled), self._engine_now(engine))
        rollout.chain = (*rollout.chain, (key, sampled))
        self._look_later(engine)

    def _engine_now(self, engine: int) -> float:
        """The engine's time. It never goes back, also where sums of times are rounded."""
        now = max(self._clock.now - self._late_s, self._times[engine])
        self._times[engine] = now
        return now

    def _look_later(self, engine: int) -> None:
        due = self._models[engine].next_event() + self._late_s
        if due < self._next[engine]:
            self._next[engine] = due
            self._clock.at(due, self._look, engine)

    def _look(self, engine: int) -> None:
        if self._clock.now < self._next[engine]:  # an earlier look was entered after this one
            return
        self._next[engine] = inf
        model = self._models[engine]
        event = model.next_event()
        if event + self._late_s <= self._clock.now:  # else it has stood still meanwhile
            self._times[engine] = max(self._engine_now(engine), event)
            for finished in model.advance(self._times[engine]):
                rollout = self._waiting.pop(finished.rid)
                self._ended(engine)
                self._answered(rollout)
        self._look_later(engine)

    def stand_still(self, seconds: float) -> None:
        for engine in range(len(self._models)):
            self._engine_now(engine)
        self._late_s += seconds


def engine_fleet(clock: Clock, engines: Engines, answered: Answered, random: Random) -> EngineFleet:
    if engines.shape is None:
        return SteadyEngines(clock, engines, answered, random)
    return ModelledEngines(clock, engines, answered)
