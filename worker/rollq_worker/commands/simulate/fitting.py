"""Costs with which simulated fleets use the CPU that the same fleets used when they were played.

No cost can be read off one process alone: a busy worker shares its cores with engine, Redis and clients, so what other
processes cost it is in its figure already. Three fleets tell the costs apart: one busy worker, more busy workers than
cores, and a worker that mostly waits. The first gives what a turn, a rollout and a message cost, the second `switch_s`
and `handover_s`, the third `wake_s`. Each depends on the others, so they are corrected in turns until all three fleets
come out. What the engine costs is no prediction: a simulated run has that of the real one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

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


@dataclass(frozen=True, slots=True)
class Real:
    """A fleet that was played, once or several times."""

    processes: int
    concurrency: int
    latency_s: float
    runs: Sequence[Steady]


def fleet_like(real: Real, run: Steady) -> Fleet:
    """The fleet of that run, on the cores that this process may use, with the episodes that were played."""
    latency_s, processes, concurrency = real.latency_s, real.processes, real.concurrency
    return Fleet(
        engines=Engines(turn_s=Amount(latency_s, latency_s * P99_OF_MEAN), cpu_s=run.engine_turn_s),
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
        costs = _with_messages(costs, busy, crowded)
        costs = _with_switches(costs, crowded)
        costs = _with_wakes(costs, waiting)
    return costs


def _with_work(costs: Costs, real: Real) -> Costs:
    """What a worker does costs more by a factor; taking a trajectory makes up the client's difference."""
    played = _simulated(costs, real)
    factor = median(one.real.worker_s / one.worker_s for one in played)
    work = {name: getattr(costs.worker, name) * factor for name in ("turn_s", "rollout_s", "message_s")}
    take_s = costs.clients.take_rollout_s + median(one.real.client_s - one.client_s for one in played)
    return replace(
        costs,
        worker=replace(costs.worker, **work),
        clients=replace(costs.clients, take_rollout_s=max(0.0, take_s)),
    )


def _with_messages(costs: Costs, *fleets: Real) -> Costs:
    """Redis's message makes up what Redis lacks. Its calls cost more beside more workers, so it is a middle.

    Where the calls come to more than Redis used in all, they cost less by one factor. They were measured one at a
    time, and a Redis that sleeps between two calls probably needs more for each.
    """
    played, redis = [_simulated(costs, real) for real in fleets], costs.redis
    real_s = fmean(median(one.real.redis_s for one in runs) for runs in played)
    calls_s = fmean(median(one.redis_s for one in runs) for runs in played) - redis.message_s
    if calls_s > real_s:
        factor = real_s / calls_s
        redis = replace(redis.times(factor), alone=redis.alone / factor)
    return replace(costs, redis=replace(redis, message_s=max(0.0, real_s - calls_s)))


def _with_switches(costs: Costs, real: Real) -> Costs:
    """A switch costs more by what the workers of the simulation lack, spread over their switches. A handover takes
    longer by the time that their cores lack."""
    played, worker = _simulated(costs, real), costs.worker
    more_s = median((one.real.worker_s - one.worker_s) / max(one.switches, FEW) for one in played)
    longer_s = median(one.lacking_cores_s / max(one.handovers, FEW) for one in played)
    return replace(
        costs,
        worker=replace(
            worker,
            switch_s=max(0.0, worker.switch_s + more_s),
            handover_s=max(0.0, worker.handover_s + longer_s),
        ),
    )


def _with_wakes(costs: Costs, real: Real) -> Costs:
    """A wake costs more by what workers and Redis lack, spread over their wakes."""
    played, worker, redis = _simulated(costs, real), costs.worker, costs.redis
    worker_s = median((one.real.worker_s - one.worker_s) / max(one.wakes, FEW) for one in played)
    redis_s = median((one.real.redis_s - one.redis_s) / max(one.redis_wakes, FEW) for one in played)
    return replace(
        costs,
        worker=replace(worker, wake_s=max(0.0, worker.wake_s + worker_s)),
        redis=replace(redis, wake_s=max(0.0, redis.wake_s + redis_s)),
    )


@dataclass(frozen=True, slots=True)
class _Simulated:
    """What a rollout of a simulated fleet took, beside the real one."""

    real: Steady
    worker_s: float
    redis_s: float
    client_s: float
    lacking_cores_s: float
    """Seconds of all cores that passed during a real rollout and not during a simulated one."""
    handovers: float
    switches: float
    wakes: float
    redis_wakes: float


def _simulated(costs: Costs, real: Real) -> list[_Simulated]:
    """Each run of the fleet."""
    found = []
    for one in real.runs:
        run = FleetRun(fleet_like(real, one), costs)
        outcome = run.play(least=LEAST_ROLLOUTS)
        a_s, done = outcome.rollouts_a_s, run.counts.done
        counts = [count / done for count in (run.cores.handovers, run.worker_switches, *run.wakes)]
        found.append(
            _Simulated(
                one,
                outcome.worker_cores / a_s,
                outcome.redis_cpu_a_rollout_s,
                (outcome.producer_busy + outcome.consumer_busy) / a_s,
                run.cores.count * (1 / one.rollouts_a_s - 1 / a_s),
                *counts,
            )
        )
    return found
