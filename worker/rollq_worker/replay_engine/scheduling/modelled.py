"""Generations in flight whose times come from the model of an engine: batches, memory, cache and retractions.

The same rules as `Scheduler` for aborts, pauses and weight versions; a pause stops the model's clock. It knows neither
HTTP nor what the tokens say, but their ids, which are what the prefix cache holds.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import asyncio
import math
import time
from array import array
from dataclasses import dataclass, field

from rollq_worker.replay_engine.http_bodies import bad_value, queue_full
from rollq_worker.replay_engine.scheduling.scheduler import Generation, Scheduler
from rollq_worker.simulation.engine_model import EngineModel, EngineShape, Load, Request
from rollq_worker.simulation.engine_model.prefix_cache import Chain

BLOCK = 64
"""Token ids of one key of the prefix cache; SGLang's own is exact to the token."""


@dataclass(slots=True, kw_only=True)
class ModelledGeneration(Generation):
    """One request. Its `total` tokens are released when the model says so."""

    ids: array[int]
    """array('I'): the prompt."""
    said: array[int]
    """array('I'): what it samples."""
    max_new_tokens: int | None
    total: int = 0
    seconds: float = 0.0
    sampled: int = 0
    """Tokens released when it was last looked at."""
    ended: bool = False
    keys: Chain = field(init=False)

    def __post_init__(self) -> None:
        self.keys, self.total = blocks(self.ids), len(self.said)

    def released(self) -> int:
        return min(self.sampled, self.total)

    def request(self) -> Request:
        whole = blocks(self.ids + self.said)
        return Request(self.rid, self.keys, self.rid, len(self.said), self.max_new_tokens, whole)


def blocks(ids: array[int]) -> Chain:
    """Keys of the ids, a block each: those of equal beginnings are equal."""
    view, chain, key = memoryview(ids).cast("B"), [], 0
    width = BLOCK * ids.itemsize
    for start in range(0, len(view), width):
        part = bytes(view[start : start + width])
        key = hash((key, part))
        chain.append((key, len(part) // ids.itemsize))
    return tuple(chain)


class ModelledScheduler(Scheduler):
    """All generations of a server whose shape is given. `max_queued` of 0 means no limit."""

    def __init__(self, shape: EngineShape, *, version: str, max_queued: int = 0) -> None:
        super().__init__(version=version)
        self._model = EngineModel(shape)
        self._longest_queue = max_queued or math.inf
        self._behind_s = 0.0
        """Seconds of all pauses that are over, by which the model's clock is behind."""
        self._stopped_at: float | None = None
        """The model's time during a pause; None: its clock runs."""
        self._alarm: asyncio.TimerHandle | None = None
        self._in_model: dict[str, ModelledGeneration] = {}

    def load(self) -> Load:
        return self._model.load(self._now())

    @property
    def idle(self) -> bool:
        load = self.load()
        return not load.running and (self.paused or not load.waiting)

    async def _queue_and_run(self, generation: Generation) -> None:
        assert isinstance(generation, ModelledGeneration)
        now = self._now()
        if self._model.load(now).waiting >= self._longest_queue:
            raise queue_full()
        try:
            self._model.submit(generation.request(), now)
        except ValueError as e:
            raise bad_value(str(e)) from e
        self._in_model[generation.rid] = generation
        self._set_alarm()
        try:
            while not generation.ended and not self._leaves(generation):
                await generation.wait(None)
        finally:
            if generation.rid in self._in_model:  # aborted, or the client hung up
                now = self._catch_up()
                if self._in_model.pop(generation.rid, None) is not None:
                    self._look_at(generation, now)
                    self._model.abort(generation.rid, now)
                self._set_alarm()
            generation.close_span(self.version)

    def _leaves(self, generation: Generation) -> bool:
        """Whether an aborted request gets its reply: at once, but after an in-place pause only when that is over."""
        return generation.aborted and (not self.paused or generation.retracted or not generation.started)

    def abort(self, rid: str | None) -> None:
        now = self._catch_up()  # what is over cannot be aborted
        for generation in self._in_model.values():
            if rid in (None, generation.rid):
                self._look_at(generation, now)
                generation.aborted = True
                generation.wake.set()
        self._set_alarm()

    def _stop_clocks(self, *, retract: bool) -> None:
        now = self._stopped_at = self._catch_up()
        for generation in self._in_model.values():
            self._look_at(generation, now)
        if retract:
            self._model.retract_all(now)
            for generation in self._in_model.values():
                generation.retracted = generation.started
                self._look_at(generation, now)
                generation.wake.set()
        self._set_alarm()

    def resume(self) -> None:
        if self._stopped_at is not None:
            self._behind_s = time.monotonic() - self._stopped_at
            self._stopped_at = None
        super().resume()
        self._set_alarm()

    def set_version(self, version: str) -> None:
        now = self._catch_up()
        for generation in self._in_model.values():
            self._look_at(generation, now)
        super().set_version(version)
        self._set_alarm()

    def flush_cache(self) -> None:
        self._model.flush_cache()

    def _now(self) -> float:
        """The model's time: it stands still during a pause."""
        return time.monotonic() - self._behind_s if self._stopped_at is None else self._stopped_at

    def _catch_up(self) -> float:
        """End what is over by now, since the alarm may be late. Returns the model's time."""
        now = self._now()
        for end in self._model.advance(now) if self._stopped_at is None else ():
            generation = self._in_model.pop(end.rid)
            generation.ended = True
            generation.wake.set()
            if not generation.aborted:
                generation.started = True
                generation.sampled, generation.cached = generation.total, end.cached_tokens
                generation.retractions = end.retractions
        return now

    def _look_at(self, generation: ModelledGeneration, now: float) -> None:
        progress = self._model.progress(generation.rid, now)
        if progress is not None and not generation.aborted:
            generation.started = generation.started or not progress.waiting
            generation.sampled, generation.cached = progress.sampled, progress.cached_tokens
            generation.retractions = progress.retractions

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        at = self._model.next_event()
        if self._stopped_at is None and at < math.inf:
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, at - self._now()), self._on_alarm)

    def _on_alarm(self) -> None:
        self._catch_up()
        self._set_alarm()
