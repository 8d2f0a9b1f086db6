"""What a worker says of itself when it registers: slots, queues, waits, engines, and how fast it
plays.

It reads what the process counts already. Nothing that is said here decides about a job.
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
    READY,
    EngineUse,
    LiveWorker,
    Wait,
)
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.job_task import JobRunner

WINDOW_S = 15.0
"""Seconds over which a rate is taken."""


class _Counted(NamedTuple):
    at: float
    turns: int
    tokens: int


class Description:
    """Calling it gives what the worker says now. It may be called from all threads."""

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
        found = []
        for use in self._engine.usage()[:MAX_ENGINES]:
            state = (
                AWAY
                if not use.engine.available
                else OUTDATED
                if use.engine.policies.outdated
                else use.idle or READY
            )
            load = (
                (use.load.running, use.load.waiting, round(use.load.token_usage, 3))
                if use.load
                else ()
            )
            found.append(EngineUse(use.engine.name, state, use.episodes, *load))
        return found

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
        return round((now.turns - first.turns) / passed_s, 2), round(
            (now.tokens - first.tokens) / passed_s, 1
        )
