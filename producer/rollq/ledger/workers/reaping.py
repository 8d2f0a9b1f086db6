"""The reaper's runs, and the role of the one worker that reaps.

A run is listed while it has queued jobs, which must be sent, or leased ones, which may expire. A
submission and a requeue list their run after they gave it jobs. The reaper looks at many runs in
one call, and takes a run off the list when it has neither, then looks again. In case an entry is
lost all the same, it looks at one of all runs a second.

Of all workers that share a ledger, one reaps at a time. The others stand by, and ask for the role
when it may be free: the reaper has handed it over, or has not renewed it for ROLE_S seconds because
it is dead. Two that reap at once do no harm: every script decides for itself.
"""

import time
from functools import partial
from itertools import count
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

from rollq.job import NAME
from rollq.ledger.keys import ACTIVE, PREFIX, REAPER, RUNS, Keys
from rollq.ledger.scripts import evaluate, lua_file
from rollq.servers.refusal import guarded

if TYPE_CHECKING:
    import redis

ACTIVE_REMEDY = "Delete that key: it fills again"
RUNS_REMEDY = "Delete that key, then submit each run again, which lists it again"
ROLE_S = 3.0
"""Seconds without a renewal after which another worker reaps. With its wait and its tick they stay
below `constants.OUTAGE_S`, so that the death of a reaper is no outage.
"""
ROLE_REMEDY = "Delete that key: workers make it again"


PAGE = 500
"""Runs that one call looks at: a few milliseconds in which Redis does nothing else."""


class Look(NamedTuple):
    """The active runs now."""

    names: list[str]
    due: list[str]
    """Runs that must be reaped."""
    idle: list[str]
    """Runs without jobs."""
    queued: int
    """Queued jobs of all."""


class ActiveRuns:
    """The list, as the reaper uses it. All methods raise LedgerError."""

    def __init__(self, client: "redis.Redis") -> None:
        self._redis: Any = client
        self._position = 0
        """Position in the list of all runs."""

    def names(self) -> list[str]:
        members = guarded(ACTIVE, lambda: self._redis.zrange(ACTIVE, 0, -1), ACTIVE_REMEDY)
        return _names(members)

    def look(self, broker_is_empty: bool = False) -> Look:
        """Looks at every run; those that are not due count as reaped. `broker_is_empty`: for some
        queue nothing waits there.
        """
        all_runs = Look([], [], [], 0)
        for first in count(0, PAGE):
            args = (1, PREFIX, "", first, first + PAGE - 1, int(broker_is_empty))
            call = partial(evaluate, self._redis, "look", *args)
            reply = guarded(ACTIVE, call, ACTIVE_REMEDY)
            page = [_names(reply[of]) for of in ("names", "due", "idle")]
            all_runs = Look(*map(add, all_runs, (*page, reply["queued"])))
            if len(reply["names"]) < PAGE:
                break
        return all_runs

    def jobs(self, run: str) -> tuple[int, int]:
        """Number of queued and of leased jobs."""
        keys = Keys(run)
        pipe = self._redis.pipeline(transaction=False)
        pipe.zcard(keys.queued)
        pipe.zcard(keys.leased)
        queued, leased = guarded(keys.queued, pipe.execute)
        return queued, leased

    def remove(self, run: str) -> None:
        """Takes an idle run off the list, unless it has got jobs since."""
        guarded(ACTIVE, lambda: self._redis.zrem(ACTIVE, run), ACTIVE_REMEDY)
        if any(self.jobs(run)):
            self.add(run)

    def add(self, run: str) -> None:
        guarded(ACTIVE, lambda: self._redis.zadd(ACTIVE, {run: time.time()}), ACTIVE_REMEDY)

    def next_of_all(self) -> str | None:
        """The next of all runs, round and round. None when there is none at this place."""
        position = self._position
        members = guarded(RUNS, lambda: self._redis.zrange(RUNS, position, position), RUNS_REMEDY)
        names = _names(members)
        if not names:
            self._position = 0
            return None
        self._position = position + 1
        return names[0]


class ReaperRole:
    """One worker's view of the role. All methods raise LedgerError."""

    def __init__(self, client: "redis.Redis", worker: str) -> None:
        self._redis: Any = client
        self._worker = worker

    def take(self) -> float:
        """Takes the role, or keeps it for ROLE_S seconds more. Returns 0.0, or the seconds until
        another worker's role ends.
        """
        return self._call(int(ROLE_S * 1000)) / 1000

    def hand_over(self) -> None:
        """Gives the role up, if this worker has it."""
        self._call(0)

    def _call(self, ms: int) -> int:
        script = lua_file("reaper_role")
        call = partial(self._redis.eval, script, 1, REAPER, self._worker, ms)
        return int(guarded(REAPER, call, ROLE_REMEDY))


def _names(members: list[bytes]) -> list[str]:
    names = [member.decode("utf-8", "replace") for member in members]
    return [name for name in names if NAME.fullmatch(name)]
