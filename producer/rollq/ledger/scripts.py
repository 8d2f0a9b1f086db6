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
from rollq.ledger import constants
from rollq.ledger.keys import Keys
from rollq.ledger.stored import text
from rollq.servers.refusal import translated

T = TypeVar("T")

SHARED = ("common", "admission", "settle", "holds", "journal")
"""Lua files whose functions scripts use, in this order: each uses what is before it."""
PART = re.compile(r"^local (?:function )?(\w+).*\n(?:(?!local ).*\n)*", re.MULTILINE)
"""A function or value of a shared file, with its name; what follows up to the next one belongs to
it.
"""
RARE = re.compile(r"^( *)-- rare: .*\n((?:\1.*\n|\n)*)", re.MULTILINE)
"""The rest of a block, from a comment on that says that it is seldom reached. Shared functions that
are used in such places alone are made there.
"""
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
        """Bytes as text; those that are no UTF-8 are shown as \\xff."""
        return text(self[name])

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
            raise self.translated(self._about(name, args), e) from e

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
            raise self.translated(what, e) from e

    def translated(self, what: str, error: redis.ResponseError) -> LedgerError:
        """The ledger's error for a refusal of Redis."""
        return translated(error, f"run {self.run}: {what}")

    def now(self) -> float:
        """Redis's clock, Unix seconds. Raises LedgerError."""
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
    text, sha = source(name)
    try:
        return Reply(client.execute_command("EVALSHA", sha, *args))
    except redis.exceptions.NoScriptError:
        return Reply(client.execute_command("EVAL", text, *args))


@cache
def source(name: str) -> tuple[str, str]:
    """The text of a run's script and its SHA-1.

    It holds the functions and values of the shared files that it needs, because Redis makes all
    that a text names again at each call. Those that only rare blocks need are in these blocks.
    Constants stand there as their values.
    """
    text = _text(name)
    common = COMMENT.sub("", RARE.sub("", text))
    shared = _needed(common)

    def block(rare: re.Match[str]) -> str:
        own = COMMENT.sub("", rare[2])
        parts = [part for part in _needed(own) if part not in shared]
        return "".join(parts) + own

    text = "".join(shared) + COMMENT.sub("", RARE.sub(block, text))
    constants = _constants()
    text = CONSTANT.sub(lambda constant: str(constants[constant[1]]), text)
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _needed(text: str) -> list[str]:
    """The functions and values of the shared files that a text names, and those that these name,
    each after those.
    """
    parts: list[str] = []
    words = set(WORD.findall(text))
    for shared in reversed(SHARED):
        lua = COMMENT.sub("", _text(shared))
        for part in reversed(list(PART.finditer(lua))):
            if part[1] in words:
                parts.insert(0, part[0])
                words.update(WORD.findall(part[0]))
    return parts


@cache
def lone_script(name: str) -> str:
    """The text of a script that belongs to no run, without the shared files. It is sent whole,
    because it is small.
    """
    return _text(name)


def short_reason(reason: str) -> bytes:
    """A failure's reason, cut to the length that is stored."""
    return reason[: constants.LONGEST_REASON].encode("utf-8", "replace")


def _text(name: str) -> str:
    return (resources.files("rollq.ledger") / "lua" / f"{name}.lua").read_text()


def _constants() -> dict[str, Any]:
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
