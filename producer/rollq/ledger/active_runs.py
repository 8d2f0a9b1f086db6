"""The runs that have something to reap: queued jobs, which must be published, or leased ones, which may expire.

A submission and a requeue list their run after they gave it jobs. The reaper takes a run off the list when it has
neither, then looks again. In case an entry is lost all the same, it looks at one of all runs a second.
"""

import time
from typing import TYPE_CHECKING, Any

from rollq.job import NAME
from rollq.ledger.keys import ACTIVE, RUNS, Keys
from rollq.servers.connection import guarded

if TYPE_CHECKING:
    import redis

ACTIVE_REMEDY = "delete that key: it fills again"
RUNS_REMEDY = "delete that key, then submit each run again, which lists it again"


class ActiveRuns:
    """The list, as the reaper uses it. All methods raise LedgerError."""

    def __init__(self, client: "redis.Redis") -> None:
        self._redis: Any = client
        self._position = 0
        """In the list of all runs."""

    def names(self) -> list[str]:
        return _names(guarded(ACTIVE, lambda: self._redis.zrange(ACTIVE, 0, -1), ACTIVE_REMEDY))

    def jobs(self, run: str) -> tuple[int, int]:
        """Number of queued and of leased jobs."""
        keys, pipe = Keys(run), self._redis.pipeline(transaction=False)
        pipe.zcard(keys.queued)
        pipe.zcard(keys.leased)
        queued, leased = guarded(keys.queued, pipe.execute)
        return queued, leased

    def remove(self, run: str) -> None:
        """Take an idle run off the list, unless it has got jobs since."""
        guarded(ACTIVE, lambda: self._redis.zrem(ACTIVE, run), ACTIVE_REMEDY)
        if any(self.jobs(run)):
            self.add(run)

    def add(self, run: str) -> None:
        guarded(ACTIVE, lambda: self._redis.zadd(ACTIVE, {run: time.time()}), ACTIVE_REMEDY)

    def next_of_all(self) -> str | None:
        """The next of all runs, round and round. None when there is none at this place."""
        position = self._position
        found = _names(guarded(RUNS, lambda: self._redis.zrange(RUNS, position, position), RUNS_REMEDY))
        self._position = position + 1 if found else 0
        return found[0] if found else None


def _names(found: list[bytes]) -> list[str]:
    return [name for run in found if NAME.fullmatch(name := run.decode("utf-8", "replace"))]
