"""Costs with which simulated fleets use the CPU that the same fleets used when they were played.

No cost can be read off one process alone: a busy worker shares its cores with engine, Redis and clients, so what other
processes cost it is in its figure already. Three fleets tell the costs apart: one busy worker, more busy workers than
cores, and a worker that mostly waits. The first gives what a turn, a rollout and a message cost, the second `switch_s`,
the third `wake_s`. Each depends on the others, so they are corrected in turns until all three fleets come out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from rollq_worker.commands.simulate.site import SIZE, Steady, ahead_of
from rollq_worker.simulation.amounts import Amount
from rollq_worker.simulation.costs.table import Costs
from rollq_worker.simulation.fleet.fleet import Engines, Fleet, Jobs, Trainer, Workers
from rollq_worker.simulation.fleet.run import FleetRun

STEPS = 8
P99_OF_MEAN = 3.37
"""The 99th percentile of the replay engine's latency, over its mean."""
LEAST_ROLLOUTS = 400
FEW = 0.1
"""Fewer interruptions a rollout tell nothing of their cost."""

Interruption = Literal["wake_s", "switch_s"]


@dataclass(frozen=True, slots=True)
class Real:
    """A fleet that was played, once or several times."""

    processes: int
    concurrency: int
    latency_s: float
    runs: Sequence[Steady]


def fleet_like(costs: Costs, real: Real, run: Steady) -> Fleet:
    """The fleet of that run, on the cores that this process may use, with the episodes that were played."""
    latency_s, processes, concurrency = real.latency_s, real.processes, real.concurrency
    cpu_s = costs.clients.replay_engine_turn_s
    return Fleet(
        engines=Engines(turn_s=Amount(latency_s, latency_s * P99_OF_MEAN), cpu_s=cpu_s),
        workers=Workers(
            processes=processes,
            concurrency=concurrency,
            cores=len(os.sched_getaffinity(0)),
            shared=True,
            foreign=run.others,
        ),
        jobs=Jobs(group_size=SIZE, episodes=tuple(run.episodes)),
        trainer=Trainer(ahead=ahead_of(processes * concurrency)),
    )


def fitted(costs: Costs, busy: Real, crowded: Real, waiting: Real) -> Costs:
    """These costs, corrected. Only the ratio of a turn's cost to a rollout's and a message's stays."""
    for _ in range(STEPS):
        costs = _with_work(costs, busy)
        costs = _with_interruption(costs, crowded, "switch_s")
        costs = _with_interruption(costs, waiting, "wake_s")
    return costs


def _with_work(costs: Costs, real: Real) -> Costs:
    """What a worker does costs more by the median of the factors; Redis's message makes up its difference."""
    factors, missing = [], []
    for run in real.runs:
        found = FleetRun(fleet_like(costs, real, run), costs).play(least=LEAST_ROLLOUTS)
        factors.append(run.worker_s * found.rollouts_a_s / found.worker_cores)
        missing.append(run.redis_s - found.redis_cpu_a_rollout_s)
    factor, worker, redis = median(factors), costs.worker, costs.redis
    work = {name: getattr(worker, name) * factor for name in ("turn_s", "rollout_s", "message_s")}
    message_s = max(0.0, redis.message_s + median(missing))
    return replace(costs, worker=replace(worker, **work), redis=replace(redis, message_s=message_s))


def _with_interruption(costs: Costs, real: Real, name: Interruption) -> Costs:
    """An interruption costs more by what the simulation misses, spread over as many as it counts."""
    worker, redis = [], []
    for run in real.runs:
        simulated = FleetRun(fleet_like(costs, real, run), costs)
        found = simulated.play(least=LEAST_ROLLOUTS)
        workers, servers = (count / simulated.counts.done for count in simulated.interruptions(name))
        worker.append((run.worker_s - found.worker_cores / found.rollouts_a_s) / max(workers, FEW))
        redis.append((run.redis_s - found.redis_cpu_a_rollout_s) / max(servers, FEW))
    return replace(
        costs,
        worker=replace(costs.worker, **{name: max(0.0, getattr(costs.worker, name) + median(worker))}),
        redis=replace(costs.redis, **{name: max(0.0, getattr(costs.redis, name) + median(redis))}),
    )
