"""Time that the episodes of a run spend, by worker: an engine that is slow, a user that is, or
rollq itself.

Each worker writes its totals since it started, again and again, so a write that is repeated changes
nothing. No job's state depends on it.
"""

from collections.abc import Iterable, Mapping

from rollq.ledger.scripts import Scripts

WAITS = ("engine", "environment", "user", "ledger", "tokens", "interpreter", "agent", "teacher")
"""The states of an episode's thread: a wait for the engine (queue and slot included), the
environment's code (its opening, its end and the reward included), the user, a call to Redis,
rollq's own code (most of it turns messages into tokens and back), a wait for another thread that
runs Python code, an agent program's own work, and a teacher on engines of its own.
"""


def report_time(scripts: Scripts, worker: str, seconds: Mapping[str, float]) -> None:
    """Records how many seconds the episodes of this run have spent in each of WAITS on this worker.
    A run that was dropped stays so. Raises LedgerError.
    """
    scripts.call("report_time", worker, " ".join(f"{seconds.get(wait, 0.0):.3f}" for wait in WAITS))


def seconds_spent(reports: Iterable[bytes]) -> dict[str, float]:
    """Seconds of all workers by WAITS, of what each has told, without what another
    program wrote.
    """
    total = dict.fromkeys(WAITS, 0.0)
    for text in reports:
        try:
            for wait, seconds in zip(WAITS, map(float, text.split()), strict=True):
                total[wait] += seconds
        except ValueError:
            continue
    return total
