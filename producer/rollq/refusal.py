"""What Redis says when it refuses, and what that means: no writes for now, or a key that was tampered with."""

import re

import redis

from rollq.errors import LedgerError, Unwritable

REFUSING = re.compile(
    r"not allowed when used memory|(?:^|[-\s])(?:MISCONF|READONLY|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY) "
)
"""What Redis says, by itself or through a script, when it takes no writes."""


def refuses_writes(error: Exception) -> bool:
    """Whether Redis takes no writes at all for now, rather than this one. redis-py drops some codes for classes."""
    if isinstance(error, redis.OutOfMemoryError | redis.ReadOnlyError):
        return True
    return "DAMAGED" not in str(error) and bool(REFUSING.search(str(error)))


def translated(error: redis.ResponseError, what: str) -> LedgerError:
    """The same as an error of the ledger that says what was tried and, if there is one, names the key."""
    kind = Unwritable if refuses_writes(error) else LedgerError
    return kind(f"{what}: {_explain(str(error))}")


def _explain(error: str) -> str:
    """A script's own complaint, or why there are no writes, without Redis's wrapping."""
    if "not allowed when used memory" in error:
        return "Redis is out of memory (used memory > 'maxmemory')"
    if "DAMAGED" not in error and (why := REFUSING.search(error)):
        return error[why.start() :].lstrip(" -")
    found = re.search(r"DAMAGED (\S+) (.*?)(?: script:|$)", error)
    return f"{found[1]} {found[2]}. The workers put it right within seconds." if found else error
