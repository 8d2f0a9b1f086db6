"""The text of the ledger's Lua scripts (lua/*.lua).

Each is atomic, and safe to repeat with the same arguments: a lost reply is indistinguishable from a lost request.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources

SCRIPTS = (
    "submit",
    "cursor",
    "budget",
    "claim",
    "append",
    "renew",
    "complete",
    "fail",
    "release",
    "bounce",
    "reap",
    "confirm",
    "take",
    "extend",
    "ack",
    "condemn",
    "requeue",
    "discard",
    "cancel",
    "fix",
    "look",
    "mend",
)
SHARED = ("common", "ends", "damage")
"""In this order: each uses what is before it."""


@cache
def sources() -> Mapping[str, str]:
    """Text of every script of a run, with what they share in front."""
    shared = "".join(map(_text, SHARED))
    return {name: shared + _text(name) for name in SCRIPTS}


def pulse() -> str:
    """Text of the one script that is of no run."""
    return _text("pulse")


def _text(name: str) -> str:
    return (resources.files("rollq") / "lua" / f"{name}.lua").read_text()
