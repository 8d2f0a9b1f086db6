"""Description of a worker for its registration: slots, queues, waits, engines, and speed.

It reads what the process counts already. It decides nothing about a job.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import rollq
from rollq.ledger.workers.live_workers import (
    AWAY,
    MAX_ENGINES,
    MAX_LEFT_ALONE,
    MAX_WAITS,
    OUTDATED,
    PAUSED,
    READY,
    EngineUse,
    LiveWorker,
    Wait,
)
from rollq_worker.engine.pool import EnginePool, Usage
from rollq_worker.process.job_task import JobRunner

WINDOW_S = 15.0
"""Seconds over which a rate is taken."""


class _Counted(NamedTuple):
    at: float
    turns: int
    tokens: int


class Description:
    """Calling it gives the present description. It may be called from all threads."""

    def __init__(
        self, runner: JobRunner, engine: EnginePool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._runner = runner
        self._engine = engine
        self._lock = threading.Lock()
        self._counted: deque[_Counted] = deque()
        """Earlier looks. Only the first may be older than WINDOW_S."""

    def __call__(self) -> LiveWorker:
        runner = self._runner
        held = runner.leases.held()
        waits = sorted(
            (Wait(attempt.job.id, *attempt.waits_for) for attempt in held),
            key=lambda wait: -wait.seconds,
        )
        turns_s, tokens_s = self._rates()
        return LiveWorker(
            name=runner.name,
            queues=tuple(runner.settings.queues),
            tokenizer=runner.tokenizer.hash,
            template=runner.tokenizer.template_hash,
            engine=READY if runner.engine.available else AWAY,
            slots=runner.settings.concurrency,
            busy=len(held),
            waits=tuple(waits[:MAX_WAITS]),
            engines=tuple(self._engines()),
            turns_s=turns_s,
            tokens_s=tokens_s,
            version=rollq.__version__,
            left_alone=tuple(runner.incompatible_runs.reasons().items())[:MAX_LEFT_ALONE],
        )

    def _engines(self) -> list[EngineUse]:
        return [_engine_use(usage) for usage in self._engine.usage()[:MAX_ENGINES]]

    def _rates(self) -> tuple[float, float]:
        """Turns and sampled tokens a second since the oldest look of the last WINDOW_S seconds."""
        now = _Counted(
            self._clock(),
            self._runner.leases.played().turns,
            self._runner.engine.traffic.replies().sampled_tokens,
        )
        with self._lock:
            looks = self._counted
            looks.append(now)
            while len(looks) > 2 and now.at - looks[1].at >= WINDOW_S:
                looks.popleft()
            first = looks[0]
        passed_s = now.at - first.at
        if passed_s < 1.0:
            return 0.0, 0.0
        turns_s = (now.turns - first.turns) / passed_s
        tokens_s = (now.tokens - first.tokens) / passed_s
        return round(turns_s, 2), round(tokens_s, 1)


def _engine_use(usage: Usage) -> EngineUse:
    engine = usage.engine
    if not engine.available:
        state: str = PAUSED if engine.paused else AWAY
    elif engine.policies.outdated:
        state = OUTDATED
    else:
        state = usage.idle or READY
    load = usage.load
    if load is None:
        return EngineUse(engine.name, state, usage.episodes)
    token_usage = round(load.token_usage, 3)
    return EngineUse(engine.name, state, usage.episodes, load.running, load.waiting, token_usage)
