"""Measures what a worker costs: real processes on this machine play real rollouts, and the system says what they used.

The costs of Redis and of the clients come from the same runs. It needs Linux (/proc), and no GPU: the replay engine
plays the engine's part.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollq.errors import SettingsError
from rollq_worker.commands.simulate.site import SIZE, TASKS, Played, Say, Site, Steady, ahead_of, memory_mb, together
from rollq_worker.simulation.amounts import Amount
from rollq_worker.simulation.costs.ledger_costs import measure_ledger
from rollq_worker.simulation.costs.table import Costs, RedisCosts, WorkerCosts
from rollq_worker.simulation.fleet.fleet import Engines, Fleet, Jobs, Trainer, Workers
from rollq_worker.simulation.fleet.run import FleetRun

BUSY, SHORT_TURNS = 16, 2
"""Concurrency of the busy worker, and the turns of its short rollouts."""
ROUNDS, PAIRS = 3, 2
"""Rounds, and how often the busy worker plays in each."""
IDLE_S = 3.0
WAITING, WAITING_S = 32, 0.5
"""Concurrency and engine latency of the worker that mostly waits."""
P99_OF_MEAN = 3.37
"""The 99th percentile of the replay engine's latency, over its mean."""
MESSAGES = 300


def measure(env: str, tokenizer: str | None, say: Say) -> Costs:
    """All costs on this machine. Takes two to three minutes. Raises SettingsError and RollqError."""
    say("the ledger's scripts on a real Redis, 16 and 10,000 jobs ...")
    redis, clients, version = measure_ledger()
    processes = 2 * len(os.sched_getaffinity(0))
    say(f"{env}: one busy worker, {processes} busy workers, and one that waits {WAITING_S:g} s a turn ...")
    with (
        Site(env, 0.0, tokenizer, _quiet) as busy,
        Site(env, 0.0, tokenizer, _quiet) as crowded,
        Site(env, WAITING_S, tokenizer, _quiet) as waiting,
    ):
        for site, count, concurrency in ((busy, 1, BUSY), (crowded, processes, BUSY), (waiting, 1, WAITING)):
            site.add_workers(count, concurrency)
        [worker] = waiting.workers
        waiting.play(1)
        rest_mb = memory_mb(worker.pid, "VmRSS")
        for site, groups in ((busy, TASKS), (crowded, TASKS * processes), (waiting, TASKS)):
            site.play(groups)  # imports, data, connections
        # In turns, because the speed of a shared machine drifts.
        rounds = [_round(busy, crowded, waiting, say) for _ in range(ROUNDS)]
        message_s = min(busy.messages(MESSAGES) for _ in range(ROUNDS))
        idle = min((_idle(waiting) for _ in range(ROUNDS)), key=sum)
        rollout_mb = max(0.0, memory_mb(worker.pid, "VmHWM") - rest_mb) / WAITING
    pairs = [pair for one in rounds for pair in one.pairs]
    quiet = sorted(pairs, key=lambda pair: pair[0].others + pair[1].others)[: len(pairs) // 2]
    full, short = (together([pair[side] for pair in quiet]) for side in (0, 1))
    publish_s = full.client_s / full.rollouts - clients.submit_group_s / SIZE
    worker_costs = replace(_worker_costs(full, short, message_s), idle=idle[0], rest_mb=rest_mb, rollout_mb=rollout_mb)
    costs = Costs(
        worker=worker_costs,
        clients=replace(clients, publish_s=max(0.0, publish_s), replay_engine_turn_s=full.engine_s / full.turns),
        redis=replace(_redis_costs(redis, full, short), idle=idle[1]),
        machine=_machine(env, tokenizer, version, full),
    )
    costs = _with_switches(costs, processes, min((one.crowded for one in rounds), key=lambda one: one.others))
    return _with_wakes(costs, min((one.waiting for one in rounds), key=lambda one: one.others))


@dataclass(frozen=True, slots=True)
class _Round:
    """Of all rounds, the quietest count: what other programs do makes the same work cost more."""

    pairs: Sequence[tuple[Played, Played]]
    """Whole rollouts and short ones, of the busy worker."""
    crowded: Steady
    waiting: Steady


def _round(busy: Site, crowded: Site, waiting: Site, say: Say) -> _Round:
    pairs = [(busy.play(TASKS), busy.play(TASKS, SHORT_TURNS)) for _ in range(PAIRS)]
    slots = len(crowded.workers) * BUSY
    found = _Round(pairs, crowded.play_steadily(slots, 1, 3), waiting.play_steadily(WAITING, 1, 1))
    others = (min(full.others + short.others for full, short in pairs), found.crowded.others, found.waiting.others)
    say("other programs used " + ", ".join(f"{one:.2f}" for one in others) + " cores meanwhile")
    return found


def _idle(site: Site) -> tuple[float, float]:
    """Shares of a core that a worker and Redis need which have nothing to do."""
    before = site.used()
    time.sleep(IDLE_S)
    after = site.used()
    return (after.workers_s - before.workers_s) / IDLE_S, (after.redis_s - before.redis_s) / IDLE_S


def fleet_like(costs: Costs, latency_s: float, processes: int, concurrency: int, real: Steady) -> Fleet:
    """The fleet of `Site.play_steadily`, on the cores of this machine, with the episodes that were played."""
    return Fleet(
        engines=Engines(turn_s=Amount(latency_s, latency_s * P99_OF_MEAN), cpu_s=costs.clients.replay_engine_turn_s),
        workers=Workers(
            processes=processes,
            concurrency=concurrency,
            cores=len(os.sched_getaffinity(0)),
            shared=True,
            foreign=real.others,
        ),
        jobs=Jobs(group_size=SIZE, episodes=tuple(real.episodes)),
        trainer=Trainer(ahead=ahead_of(processes * concurrency)),
    )


def _worker_costs(full: Played, short: Played, message_s: float) -> WorkerCosts:
    """A long and a short rollout tell what a turn costs, and what the rest of a rollout does."""
    turn_s = _slope(full, short, full.workers_s, short.workers_s)
    rest_s = (full.workers_s - turn_s * full.turns) / full.rollouts
    message_s = max(0.0, min(message_s, rest_s))
    return WorkerCosts(turn_s=turn_s, rollout_s=max(0.0, rest_s - message_s), message_s=message_s)


def _with_switches(costs: Costs, processes: int, real: Steady) -> Costs:
    """What the simulation of so many busy workers misses is the cost of another process on the core."""
    run = FleetRun(fleet_like(costs, 0.0, processes, BUSY, real), costs)
    run.play()
    return _with_missing(costs, run, real, "switch_s")


def _with_wakes(costs: Costs, real: Steady) -> Costs:
    """What the simulation of a worker that waits misses is the cost of pauses."""
    run = FleetRun(fleet_like(costs, WAITING_S, 1, WAITING, real), costs)
    run.play()
    return _with_missing(costs, run, real, "wake_s")


def _with_missing(costs: Costs, run: FleetRun, real: Steady, name: str) -> Costs:
    """The costs with what this run lacks of the CPU that the real one took, by its wakes or its switches."""
    done, (workers, redis) = run.counts.done, run.interruptions(name)
    worker_s = max(0.0, (real.worker_s * done - run.counts.workers_s) / max(1, workers))
    redis_s = max(0.0, (real.redis_s * done - run.counts.redis_s) / max(1, redis))
    changes: tuple[dict[str, Any], dict[str, Any]] = {name: worker_s}, {name: redis_s}
    return replace(costs, worker=replace(costs.worker, **changes[0]), redis=replace(costs.redis, **changes[1]))


def _quiet(_: str) -> None:
    """Nothing is said of the processes."""


def _slope(full: Played, short: Played, of_full: float, of_short: float) -> float:
    """What a further turn adds."""
    turns = full.turns / full.rollouts - short.turns / short.rollouts
    if turns <= 0.5:
        raise SettingsError(
            f"rollouts of this environment have {full.turns / full.rollouts:.1f} turns, which are too few to tell what"
            " a turn costs: measure with another --env"
        )
    return (of_full / full.rollouts - of_short / short.rollouts) / turns


def _redis_costs(redis: RedisCosts, full: Played, short: Played) -> RedisCosts:
    """What the ledger's calls do not explain of Redis's CPU is Celery's message and the renewals."""
    rollouts = full.rollouts
    ledger = redis.submit_job_s + redis.submit_group_s / SIZE + redis.claim_s + redis.complete_s + redis.read_rollout_s
    ledger += (full.turns / rollouts - 1) * redis.append_s + full.bytes / rollouts / 1000 * redis.append_kb_s
    more = full.own_tokens / rollouts - short.own_tokens / short.rollouts
    token_bytes = max(0.0, (full.bytes / rollouts - short.bytes / short.rollouts) / more)
    return replace(
        redis,
        message_s=max(0.0, full.redis_s / rollouts - ledger),
        token_bytes=token_bytes,
        rollout_bytes=max(0.0, (full.bytes - token_bytes * full.own_tokens) / rollouts - redis.job_bytes),
    )


def _machine(env: str, tokenizer: str | None, redis: str, played: Played) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "redis": redis,
        "env": env,
        "tokenizer": Path(tokenizer).name if tokenizer else "bundled",
        "turns": round(played.turns / played.rollouts, 1),
        "tokens": round(sum(one.tokens for one in played.episodes) / played.rollouts),
        "others": round(played.others, 2),
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
