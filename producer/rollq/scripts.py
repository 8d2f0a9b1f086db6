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
)


@cache
def sources() -> Mapping[str, str]:
    """Text of every script, with what they share in front."""
    lua = resources.files("rollq") / "lua"
    common = (lua / "common.lua").read_text()
    return {name: common + (lua / f"{name}.lua").read_text() for name in SCRIPTS}
