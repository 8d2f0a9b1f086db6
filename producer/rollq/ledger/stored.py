"""Reads values of the ledger's records. Another program may have written anything there."""

import re
from math import isfinite

from rollq.errors import LedgerError
from rollq.job import LARGEST_GROUP
from rollq.servers.refusal import KEY_REMEDY

COUNT = re.compile(rb"[0-9]{1,10}")


def text(value: bytes | None) -> str:
    """Bytes that are not UTF-8 are shown as \\xff."""
    return (value or b"").decode("utf-8", "backslashreplace")


def number(value: bytes | None) -> float | None:
    """A finite number, or None."""
    try:
        stored = float(value or b"nan")
    except ValueError:
        return None
    return stored if isfinite(stored) else None


def count(value: bytes | None, key: str, field: str) -> int:
    """A count or a step; 0 when it is missing. Raises LedgerError for anything else."""
    if value is None:
        return 0
    if not COUNT.fullmatch(value):
        raise LedgerError(f"{key} has no readable {field}. {KEY_REMEDY}")
    return int(value)


def group_size(size: bytes | None, spare: bytes | None, key: str) -> tuple[int, int]:
    """The graded members that a group needs, and how many members it has. Raises LedgerError."""
    graded = count(size, key, "size")
    members = graded + count(spare, key, "spare")
    if not 0 < graded <= members <= LARGEST_GROUP:
        raise LedgerError(
            f"{key} has no readable size: a group has 1 to {LARGEST_GROUP} members. {KEY_REMEDY}"
        )
    return graded, members
