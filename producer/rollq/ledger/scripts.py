"""The text of the ledger's Lua scripts (lua/*.lua).

Each is atomic, and safe to repeat with the same arguments: a lost reply is indistinguishable from a lost request.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources

SCRIPTS = (
    "submit",
    "submission_cursor",
    "fix_budgets",
    "claim",
    "append",
    "renew_leases",
    "complete",
    "fail",
    "release",
    "republish",
    "reap",
    "confirm",
    "take",
    "extend_hold",
    "ack",
    "reject",
    "requeue",
    "delete_dead",
    "cancel",
    "fix_hashes",
    "snapshot",
    "mend",
)
SHARED = ("common", "settle", "damage")
"""In this order: each uses what is before it."""


@cache
def sources() -> Mapping[str, str]:
    """Text of every script of a run, with what they share in front."""
    shared = "".join(map(_text, SHARED))
    return {name: shared + _text(name) for name in SCRIPTS}


def pulse() -> str:
    """Text of the one script that is of no run."""
    return _text("outage")


def _text(name: str) -> str:
    return (resources.files("rollq.ledger") / "lua" / f"{name}.lua").read_text()
