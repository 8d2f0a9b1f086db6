"""Outages of the engines of other models than the policy."""

from collections.abc import Callable

from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.attempts.attempt import Attempt


def check_away(attempt: Attempt, engine: EnginePool) -> Callable[[], None]:
    """Function to call while another model's engine is waited for. It keeps the deadline's clock
    still while all engines of the model are away; for the policy's own the attempt does so itself.
    """
    away_s = engine.outage_s

    def check() -> None:
        nonlocal away_s
        now_s = engine.outage_s
        if now_s > away_s:
            attempt.time_limits.stand_still(now_s - away_s)
        away_s = now_s
        attempt.check()

    return check
