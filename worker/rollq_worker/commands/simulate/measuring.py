"""Measures what a worker costs: real processes on this machine play real rollouts, and the system says what they used.

The costs of Redis and of the clients come from the same runs. It needs Linux (/proc), and no GPU: the replay engine
plays the engine's part.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rollq.errors import SettingsError
from rollq_worker.commands.simulate.fitting import Real, fitted
from rollq_worker.commands.simulate.site import (
    CORES,
    SIZE,
    TASKS,
    Played,
    Say,
    Site,
    Steady,
    few_cores,
    memory_mb,
    together,
)
from rollq_worker.simulation.costs.ledger_costs import measure_ledger
from rollq_worker.simulation.costs.table import Costs, RedisCosts, WorkerCosts

BUSY, SHORT_TURNS = 16, 2
"""Concurrency of a busy worker, and the turns of its short rollouts."""
CROWD = 2 * CORES
"""Busy workers on the same cores."""
WAITING, WAITING_S = 32, 0.5
"""Concurrency and engine latency of the worker that mostly waits."""
ROUNDS = 3
IDLE_S = 2.0
MESSAGES = 200


@dataclass(frozen=True, slots=True)
class Round:
    """One after the other, because the speed of a shared machine drifts."""

    full: Played
    short: Played
    """Whole rollouts and those of two turns, by the busy worker."""
    busy: Steady
    crowded: Steady
    waiting: Steady
    message_s: float
    idle: tuple[float, float]

    @property
    def others(self) -> float:
        return median((self.busy.others, self.crowded.others, self.waiting.others))


def measure(env: str, tokenizer: str | None, say: Say) -> Costs:
    """All costs on this machine. Takes about three minutes. Raises SettingsError and RollqError."""
    with few_cores(), Measurement(env, tokenizer, say) as measurement:
        rounds = []
        for number in range(1, ROUNDS + 1):
            say(f"round {number} of {ROUNDS}: rollouts of a busy worker, of {CROWD}, and of one that waits ...")
            rounds.append(measurement.round())
            say(f"other programs used {rounds[-1].others:.2f} of {CORES} cores meanwhile")
        say("simulating the same fleets until they use the same CPU ...")
        return measurement.costs(rounds)


class Measurement:
    """The processes of a measurement, in three sites. Leaving the context ends them.

    They and this process have to be on few cores (`few_cores`).
    """

    def __init__(self, env: str, tokenizer: str | None, say: Say) -> None:
        self._env, self._tokenizer, self._say = env, tokenizer, say
        self._sites = ExitStack()

    def __enter__(self) -> Measurement:
        try:
            self._start()
        except BaseException:
            self._sites.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._sites.close()

    def _start(self) -> None:
        self._say("the ledger's scripts on a real Redis, with 16 and with 10,000 jobs ...")
        self._redis, self._clients, self._version = measure_ledger()
        self._say(f"{self._env}: starting engines and {CROWD + 2} workers ...")
        self.busy = self._site(0.0)
        self.waiting = self._site(WAITING_S)
        self.busy.add_workers(1, BUSY)
        self.crowded = self._site(0.0, self.busy)
        self.crowded.add_workers(CROWD, BUSY)
        self.waiting.add_workers(1, WAITING)
        for site in (self.busy, self.crowded, self.waiting):
            site.await_workers()
        self._say("first rollouts: imports, data, connections ...")
        [worker] = self.waiting.workers
        self.waiting.play(1)
        self._rest_mb = memory_mb(worker.pid, "VmRSS")
        self.waiting.play(2 * WAITING // SIZE)
        self._rollout_mb = max(0.0, memory_mb(worker.pid, "VmHWM") - self._rest_mb) / WAITING
        self.busy.play(TASKS)
        self.crowded.play(2 * CROWD * BUSY // SIZE)

    def _site(self, latency_s: float, beside: Site | None = None) -> Site:
        return self._sites.enter_context(Site(self._env, latency_s, self._tokenizer, beside))

    def round(self) -> Round:
        """Play each fleet once."""
        full, short = self.busy.play(TASKS), self.busy.play(TASKS, SHORT_TURNS)
        busy = self.busy.play_steadily(BUSY, 1, 8)
        message_s = self.busy.messages(MESSAGES)
        crowded = self.crowded.play_steadily(CROWD * BUSY, 1, 4)
        waiting = self.waiting.play_steadily(WAITING, 1, 2)
        return Round(full, short, busy, crowded, waiting, message_s, self.waiting.rest(IDLE_S))

    def costs(self, rounds: Sequence[Round]) -> Costs:
        """What these rounds cost."""
        full, short = together([one.full for one in rounds]), together([one.short for one in rounds])
        publish_s = full.client_s / full.rollouts - self._clients.submit_group_s / SIZE
        engine_turn_s = median(one.busy.engine_turn_s for one in rounds)
        worker = _worker_costs(full, short, median(one.message_s for one in rounds))
        costs = Costs(
            worker=replace(
                worker,
                idle=median(one.idle[0] for one in rounds),
                rest_mb=self._rest_mb,
                rollout_mb=self._rollout_mb,
            ),
            clients=replace(self._clients, publish_s=max(0.0, publish_s), replay_engine_turn_s=engine_turn_s),
            redis=replace(_redis_costs(self._redis, full, short), idle=median(one.idle[1] for one in rounds)),
            machine=_machine(self._env, self._tokenizer, self._version, full, rounds),
        )
        return fitted(
            costs,
            busy=Real(1, BUSY, 0.0, [one.busy for one in rounds]),
            crowded=Real(CROWD, BUSY, 0.0, [one.crowded for one in rounds]),
            waiting=Real(1, WAITING, WAITING_S, [one.waiting for one in rounds]),
        )


def _worker_costs(full: Played, short: Played, message_s: float) -> WorkerCosts:
    """A long and a short rollout tell what a turn costs, and what the rest of a rollout does."""
    turn_s = _slope(full, short, full.workers_s, short.workers_s)
    rest_s = (full.workers_s - turn_s * full.turns) / full.rollouts
    message_s = max(0.0, min(message_s, rest_s))
    return WorkerCosts(turn_s=turn_s, rollout_s=max(0.0, rest_s - message_s), message_s=message_s)


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


def _machine(env: str, tokenizer: str | None, redis: str, played: Played, rounds: Sequence[Round]) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "redis": redis,
        "env": env,
        "tokenizer": Path(tokenizer).name if tokenizer else "bundled",
        "turns": round(played.turns / played.rollouts, 1),
        "tokens": round(sum(one.tokens for one in played.episodes) / played.rollouts),
        "others": round(median(one.others for one in rounds), 2),
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
