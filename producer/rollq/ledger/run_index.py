"""The list of runs. It says which there are and nothing else; what a run is, its own keys say."""

from typing import Any

import redis

from rollq.errors import LedgerError
from rollq.job import NAME
from rollq.ledger.keys import RUNS, Keys


def runs(client: "redis.Redis") -> list[str]:
    """Every run that was ever submitted to, the oldest first. Raises LedgerError."""
    try:
        found: Any = client.zrange(RUNS, 0, -1)
    except redis.ResponseError as e:
        raise LedgerError(f"{RUNS}: {e}. The workers put it right within seconds.") from e
    return [name for run in found if NAME.fullmatch(name := run.decode("utf-8", "replace"))]


def find_runs(client: "redis.Redis") -> list[str]:
    """Makes the list anew from the runs' own keys, when it was lost or damaged. Walks all of Redis."""
    if client.type(RUNS) not in (b"zset", b"none"):
        client.rename(RUNS, f"{RUNS}:damaged")
    first, last = Keys("*").meta.split("*")
    found = [key.decode("utf-8", "replace")[len(first) : -len(last)] for key in client.scan_iter(Keys("*").meta, 1000)]
    if names := sorted(name for name in found if NAME.fullmatch(name)):
        client.zadd(RUNS, dict.fromkeys(names, 0.0), nx=True)
    return names
