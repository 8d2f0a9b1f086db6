"""What a simulated run came to: counts at two moments, and what follows for rates, shares and waits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rollq_worker.simulation.costs.table import Costs
from rollq_worker.simulation.fleet.fleet import Fleet


@dataclass(slots=True)
class Counts:
    """Sums since the beginning of a run. `playing`, `playing_since` and the two of bytes are states, not sums."""

    done: int = 0
    turns: int = 0
    sampled_tokens: int = 0
    calls: int = 0
    """Calls to Redis."""
    scripts: int = 0
    """Those of them that are scripts of the ledger."""
    batches: int = 0
    rollout_s: float = 0.0
    """Seconds of the rollouts that ended, each from its claim on."""
    engine_s: float = 0.0
    """Seconds for which turns waited for an engine."""
    written_bytes: float = 0.0
    workers_s: float = 0.0
    producer_s: float = 0.0
    consumer_s: float = 0.0
    redis_s: float = 0.0
    engines_s: float = 0.0
    updating_s: float = 0.0
    training_s: float = 0.0
    playing_s: float = 0.0
    """Number of rollouts that were played, times the seconds."""
    playing: int = 0
    playing_since: float = 0.0
    kept_bytes: float = 0.0
    most_bytes: float = 0.0

    def __sub__(self, before: Counts) -> Counts:
        return Counts(*(getattr(self, one.name) - getattr(before, one.name) for one in fields(self)))


class Marks:
    """Where the measurement begins and ends, in rollouts that are done.

    It begins after `least`, once the trainer waits for a batch; else after `most`, because by then the trainer's queue
    is as long as it gets.
    """

    def __init__(self, least: int, most: int, measured: int) -> None:
        self._least, self._most, self._measured = least, most, measured
        self.last = most + measured
        """At the latest."""
        self._began = False

    def reached(self, done: int, *, trainer_waits: bool) -> bool:
        if self._began:
            return done >= self.last
        if done < self._least or (done < self._most and not trainer_waits):
            return False
        self._began, self.last = True, done + self._measured
        return True


@dataclass(slots=True)
class Samples:
    """Single values within the measurement."""

    batch_wait_s: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    """Of each group: training steps from its first claim to its use."""

    def clear(self) -> None:
        self.batch_wait_s.clear()
        self.staleness.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Rates are per simulated second, shares are of the time that there was."""

    seconds: float
    rollouts: int
    slots: int
    playing: float
    """Rollouts that were played at a time, on average."""
    rollouts_a_s: float
    turns_a_s: float
    tokens_a_s: float
    """Sampled tokens."""
    turns_a_rollout: float
    rollout_s: float
    engine_turn_s: float
    """Seconds from a turn's request to its reply."""
    engine_idle: float
    """Share of the engines' time in which an engine had no request, or loaded weights."""
    updating: float
    """Share of the time in which engines loaded weights."""
    batch_wait_p50_s: float
    batch_wait_p99_s: float
    trainer_busy: float
    staleness: dict[int, float]
    """Share of the groups by the training steps from their first claim to their use."""
    worker_cores: float
    """Cores that the worker processes used."""
    worker_busy: float
    """Share of one process's time."""
    worker_cpu_a_turn_s: float
    redis_busy: float
    redis_calls_a_s: float
    scripts_a_rollout: float
    redis_cpu_a_rollout_s: float
    redis_mb_a_s: float
    """Megabytes that are written."""
    redis_mb: float
    """The most that the run kept."""
    producer_busy: float
    consumer_busy: float
    workers_mb: float
    """Memory of a worker process."""
    events: int

    @classmethod
    def of(
        cls, fleet: Fleet, costs: Costs, seconds: float, counts: Counts, samples: Samples, most: float, events: int
    ) -> Outcome:
        engines, processes = fleet.engines.count * seconds, fleet.workers.processes * seconds
        updating = min(1.0, counts.updating_s / seconds)
        total = len(samples.staleness)
        return cls(
            seconds=seconds,
            rollouts=counts.done,
            slots=fleet.slots,
            playing=counts.playing_s / seconds,
            rollouts_a_s=counts.done / seconds,
            turns_a_s=counts.turns / seconds,
            tokens_a_s=counts.sampled_tokens / seconds,
            turns_a_rollout=counts.turns / counts.done,
            rollout_s=counts.rollout_s / counts.done,
            engine_turn_s=counts.engine_s / max(1, counts.turns),
            engine_idle=min(1.0, 1 - counts.engines_s / engines + updating),
            updating=updating,
            batch_wait_p50_s=percentile(samples.batch_wait_s, 0.5),
            batch_wait_p99_s=percentile(samples.batch_wait_s, 0.99),
            trainer_busy=min(1.0, (counts.training_s + counts.updating_s) / seconds),
            staleness={age: n / total for age, n in sorted(Counter(samples.staleness).items())},
            worker_cores=counts.workers_s / seconds,
            worker_busy=counts.workers_s / processes,
            worker_cpu_a_turn_s=counts.workers_s / max(1, counts.turns),
            redis_busy=counts.redis_s / seconds,
            redis_calls_a_s=counts.calls / seconds,
            scripts_a_rollout=counts.scripts / counts.done,
            redis_cpu_a_rollout_s=counts.redis_s / counts.done,
            redis_mb_a_s=counts.written_bytes / seconds / 1e6,
            redis_mb=most / 1e6,
            producer_busy=counts.producer_s / seconds,
            consumer_busy=counts.consumer_s / seconds,
            workers_mb=costs.worker.rest_mb + fleet.workers.concurrency * costs.worker.rollout_mb,
            events=events,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank; 0.0 where there is no value."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else 0.0
