"""Outages of engines while a call with a time limit waits for them."""

from collections.abc import Callable

from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.attempts.attempt import Attempt


def check_away(
    attempt: Attempt, engine: EnginePool, *, deadline: bool = True
) -> Callable[[], None]:
    """Function to call while a model's engine is waited for. It keeps the clocks still while all
    engines of the model are away. `deadline`: the attempt's too, which does so itself for the
    policy's engines.
    """
    away_s = engine.outage_s

    def check() -> None:
        nonlocal away_s
        now_s = engine.outage_s
        if now_s > away_s:
            attempt.time_limits.stand_still(now_s - away_s, deadline=deadline)
        away_s = now_s
        attempt.check()

    return check
