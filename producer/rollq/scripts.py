"""The ledger's Lua scripts (lua/*.lua), and how one is called.

Each is atomic, and safe to repeat with the same arguments: a lost reply is indistinguishable from a lost request. It
knows nothing of what they do.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import redis

from rollq.view import LedgerView

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
)

REASON = 8000
"""Characters of a failure's reason that are kept."""


@cache
def sources() -> Mapping[str, str]:
    """Text of every script, with what they share in front."""
    lua = resources.files("rollq") / "lua"
    common = (lua / "common.lua").read_text()
    return {name: common + (lua / f"{name}.lua").read_text() for name in SCRIPTS}


class Scripts(LedgerView):
    """One run's ledger, as something that scripts are run on."""

    def __init__(self, client: "redis.Redis", run: str) -> None:
        super().__init__(client, run)
        self._scripts = {name: client.register_script(source) for name, source in sources().items()}

    def _call(self, name: str, args: Sequence[Any]) -> Any:
        return self._guard(name, lambda: self._scripts[name](keys=[self.keys.prefix], args=args))
