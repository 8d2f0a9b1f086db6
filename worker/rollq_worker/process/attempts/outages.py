"""Outages of engines of other models than the policy, while an attempt asks one of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollq.ledger.workers.live_workers import MODEL_AWAY
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.attempts.attempt import Attempt, Question


@contextmanager
def asking(attempt: Attempt, model: str, engine: EnginePool) -> Iterator[Callable[[], None]]:
    """A block in which the attempt asks this model; an empty name is the policy. Returns the
    function to call while its engines are waited for. It keeps the clocks still while all of them
    are away; the attempt does so itself for the deadline and the policy's engines.
    """
    away_s = engine.outage_s

    def check() -> None:
        nonlocal away_s
        now_s = engine.outage_s
        if now_s > away_s:
            attempt.time_limits.stand_still(now_s - away_s, deadline=bool(model))
        away_s = now_s
        attempt.check()

    engines = f"{MODEL_AWAY} {model!r}"
    question = Question(engines, lambda: not engine.available, time.monotonic())
    if model:
        attempt.questions.append(question)
    try:
        yield check
    finally:
        if model:
            attempt.questions.remove(question)
