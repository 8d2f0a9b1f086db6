"""The list of runs: their names and nothing else. What a run holds, its own keys say."""

from typing import Any

import redis

from rollq.errors import LedgerError
from rollq.job import NAME
from rollq.ledger.keys import RUNS


def runs(client: "redis.Redis") -> list[str]:
    """Every run that was ever submitted to, the oldest first. Raises LedgerError."""
    try:
        found: Any = client.zrange(RUNS, 0, -1)
    except redis.ResponseError as e:
        raise LedgerError(f"{RUNS}: {e}. Delete that key, then submit each run again, which lists it again.") from e
    return [name for run in found if NAME.fullmatch(name := run.decode("utf-8", "replace"))]
