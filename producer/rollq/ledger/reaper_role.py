"""The role of the reaper: of all workers that share a ledger, one reaps at a time.

The others stand by, and ask for it when it may be free: the reaper has handed it over, or has not renewed it for ROLE_S
seconds because it is dead. Two that reap at once do no harm: every script decides for itself.
"""

from typing import TYPE_CHECKING, Any

from rollq.ledger.keys import REAPER
from rollq.ledger.scripts import lone_script
from rollq.servers.connection import guarded

if TYPE_CHECKING:
    import redis

ROLE_S = 3.0
"""Seconds without a renewal after which another worker reaps. With its wait and its tick they stay below
`constants.OUTAGE_S`, so that the death of a reaper is no outage."""
REMEDY = "delete that key: workers make it again"


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
        """Give the role up, if this worker has it."""
        self._call(0)

    def _call(self, ms: int) -> int:
        script = lone_script("reaper_role")
        return int(guarded(REAPER, lambda: self._redis.eval(script, 1, REAPER, self._worker, ms), REMEDY))
