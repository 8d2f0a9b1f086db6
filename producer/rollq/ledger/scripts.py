"""Runs the ledger's Lua scripts (lua/*.lua) on the keys of one run, and turns what Redis refuses
into typed errors.

Each script is atomic, and safe to repeat with the same arguments, because a lost reply looks like a
lost request.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import redis

from rollq.errors import ContractError, LedgerError
from rollq.job import LARGEST_GROUP, Purpose, parse_id
from rollq.ledger import constants, stored
from rollq.ledger.keys import Keys
from rollq.servers.refusal import translated

T = TypeVar("T")

SHARED = ("common", "admission", "settle", "holds", "journal")
"""Lua files whose functions scripts use, in this order: each uses what is before it."""
PART = re.compile(r"^local (?:function )?(\w+).*\n(?:(?!local ).*\n)*", re.MULTILINE)
"""A shared function or value with its name: everything up to the next `local`."""
RARE = re.compile(r"^( *)-- rare: .*\n((?:\1.*\n|\n)*)", re.MULTILINE)
"""The rest of a block, after a comment `-- rare: ...` that says that it is seldom reached."""
CONSTANT = re.compile(r"\bconstants\.(\w+)")
COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
WORD = re.compile(r"\w+")


class Reply:
    """A script's reply: a status, and values by name."""

    __slots__ = ("_values", "status")

    def __init__(self, reply: Sequence[Any]) -> None:
        """`reply`: the status, then names and values in turn."""
        self.status = reply[0].decode()
        self._values = dict(zip(reply[1::2], reply[2::2], strict=True))

    def __getitem__(self, name: str) -> Any:
        """A number, bytes or a list."""
        return self._values[name.encode()]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return (name.decode() for name in self._values)

    def text(self, name: str) -> str:
        """Bytes as text. Those that are not UTF-8 are shown as \\xff."""
        return stored.text(self[name])

    def step(self, name: str) -> int | None:
        """A step; None where the reply has none."""
        value = self[name]
        return None if value == b"" else int(value)


class Scripts:
    """The scripts of one run. The ledger, its reader and the dead letters each hold one; it is
    cheap to make.
    """

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.redis: Any = client  # redis-py's types say that every reply may be awaited
        self.run = run
        self.keys = Keys(run)
        self._first_args = (1, self.keys.prefix, run)

    def call(self, name: str, *args: Any) -> Reply:
        """The reply of lua/<name>.lua. Raises LedgerError."""
        try:
            return evaluate(self.redis, name, *self._first_args, *args)
        except redis.ResponseError as e:
            raise self.error_for(self._about(name, args), e) from e

    def _about(self, name: str, args: Sequence[Any]) -> str:
        """The script, and the first job among its arguments."""
        for arg in args:
            if str(arg).startswith(f"{self.run}/"):
                return f"{name} of job {arg}"
        return name

    def command(self, name: str, key: str, *args: Any, **options: Any) -> Any:
        """The reply of a Redis command on this key. Raises LedgerError, naming run and key."""
        return self.guard(key, lambda: getattr(self.redis, name)(key, *args, **options))

    def guard(self, what: str, call: Callable[[], T]) -> T:
        """The call's reply. Raises LedgerError or Unwritable, naming the run and `what`, when Redis
        refuses it.
        """
        try:
            return call()
        except redis.ResponseError as e:
            raise self.error_for(what, e) from e

    def error_for(self, what: str, error: redis.ResponseError) -> LedgerError:
        """The ledger's error for a refusal of Redis."""
        return translated(error, f"run {self.run}: {what}")

    def now(self) -> float:
        """Redis's clock in Unix seconds. Raises LedgerError."""
        seconds, micros = self.guard("the clock", self.redis.time)
        return float(seconds + micros / 1e6)

    def parse(self, job_id: str) -> tuple[str, int]:
        """Group and sample of one of this run's jobs. Raises ContractError for any other id."""
        run, group, sample = parse_id(job_id)
        if run != self.run:
            raise ContractError(f"job {job_id} is not of run {self.run}")
        return group, sample


def evaluate(client: Any, name: str, *args: Any) -> Reply:
    """The reply of lua/<name>.lua. `args`: the number of keys, the keys, and the arguments. Raises
    redis.ResponseError.
    """
    lua, sha = source(name)
    try:
        return Reply(client.execute_command("EVALSHA", sha, *args))
    except redis.exceptions.NoScriptError:
        return Reply(client.execute_command("EVAL", lua, *args))


@cache
def source(name: str) -> tuple[str, str]:
    """The Lua text of a run's script, and its SHA-1.

    It contains only the shared functions that it uses, because Redis runs the whole text at each
    call. Functions that only rare blocks use stand in those blocks. Constants are replaced by their
    values.
    """
    lua = lua_file(name)
    shared = _needed(COMMENT.sub("", RARE.sub("", lua)))

    def block(rare: re.Match[str]) -> str:
        own = COMMENT.sub("", rare[2])
        parts = [part for part in _needed(own) if part not in shared]
        return "".join(parts) + own

    body = RARE.sub(block, lua)
    linked = "".join(shared) + COMMENT.sub("", body)
    numbers = _script_constants()
    lua = CONSTANT.sub(lambda constant: str(numbers[constant[1]]), linked)
    return lua, hashlib.sha1(lua.encode(), usedforsecurity=False).hexdigest()


def _needed(lua: str) -> list[str]:
    """The shared functions and values that a text uses, and those that these use, in the order of
    their files: each stands before what uses it.
    """
    needed: list[str] = []
    words = set(WORD.findall(lua))
    for part in reversed(_shared_parts()):
        if part[1] in words:
            needed.append(part[0])
            words.update(WORD.findall(part[0]))
    return needed[::-1]


def _shared_parts() -> list[re.Match[str]]:
    parts: list[re.Match[str]] = []
    for name in SHARED:
        parts += PART.finditer(COMMENT.sub("", lua_file(name)))
    return parts


@cache
def lua_file(name: str) -> str:
    """The text of a Lua file."""
    return (resources.files("rollq.ledger") / "lua" / f"{name}.lua").read_text()


def short_reason(reason: str) -> bytes:
    """A failure's reason, cut to the length that is stored."""
    return reason[: constants.LONGEST_REASON].encode("utf-8", "replace")


def _script_constants() -> dict[str, Any]:
    """The numbers that scripts use, and how Lua writes the tables among them."""
    return {
        "lease_s": constants.LEASE_S,
        "sending_s": constants.SENDING_S,
        "confirmed_s": constants.CONFIRMED_S,
        "outage_s": constants.OUTAGE_S,
        "grace_s": constants.GRACE_S,
        "wake_s": constants.WAKE_S,
        "longest_backoff_s": constants.LONGEST_BACKOFF_S,
        "largest_group": LARGEST_GROUP,
        **TABLES,
    }


def _table(entries: Mapping[Any, Any]) -> str:
    pairs = [f"{name} = {value}" for name, value in entries.items()]
    return f"({{ {', '.join(pairs)} }})"


TABLES = {
    "budgets": _table(constants.BUDGETS),
    "infrastructure": _table(dict.fromkeys(constants.INFRASTRUCTURE, "true")),
    "priorities": _table(
        {
            "interrupted": constants.INTERRUPTED,
            Purpose.EVAL: constants.EVAL,
            Purpose.TRAIN: constants.NEW,
        }
    ),
}
