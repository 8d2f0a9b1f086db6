"""The role of the reaper: of all workers that share a ledger, one reaps at a time.

The others stand by. They take the role when the reaper hands it over, or when it has not renewed the role for ROLE_S
seconds because it is dead. Two that reap at once do no harm: every script decides for itself.
"""

from typing import TYPE_CHECKING, Any

from rollq.ledger.connection import guarded
from rollq.ledger.keys import REAPER, REAPER_FREE
from rollq.ledger.scripts import lone_script

if TYPE_CHECKING:
    import redis

ROLE_S = 3.0
"""Seconds without a renewal after which another worker reaps. With its wait and its tick they stay below
`constants.OUTAGE_S`, so that the death of a reaper is no outage."""
ROLE, FREE = (f"{key} (delete that key: workers make it again)" for key in (REAPER, REAPER_FREE))
"""What errors name."""
FREE_MS = 1000
"""Milliseconds for which the role is announced as free."""


class ReaperRole:
    """One worker's view of the role. All methods raise LedgerError."""

    def __init__(self, client: "redis.Redis", worker: str) -> None:
        self._redis: Any = client
        self._worker = worker

    def take(self) -> float:
        """Take the role, or keep it for ROLE_S seconds more. Returns 0.0, or the seconds until another worker's role
        ends."""
        return self._call(int(ROLE_S * 1000)) / 1000

    def hand_over(self) -> None:
        """Give the role up, if this worker has it, and wake one that stands by."""
        if self._call(0) == 0:
            pipe = self._redis.pipeline(transaction=False)
            pipe.lpush(REAPER_FREE, 1)
            pipe.pexpire(REAPER_FREE, FREE_MS)
            guarded(FREE, pipe.execute)

    def stand_by(self, seconds: float) -> None:
        """Wait until the role is handed over, for that many seconds at most."""
        guarded(FREE, lambda: self._redis.blpop(REAPER_FREE, timeout=round(max(0.01, seconds), 3)))

    def _call(self, ms: int) -> int:
        return int(guarded(ROLE, lambda: self._redis.eval(lone_script("reaper_role"), 1, REAPER, self._worker, ms)))
