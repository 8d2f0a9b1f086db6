"""What a list of rollouts shows of an exported one: its facts without messages and tokens, which are nearly all of it.

Pure. With msgspec, which does not make objects of what nobody asked for, a line is read six times as fast.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypedDict


class Head(NamedTuple):
    """One rollout of a file, or a part of the file that could not be read."""

    name: str
    """For people: `line 12`."""
    where: Any
    """What `read_at` of its format finds it by."""
    end: Any
    """What `heads` of its format goes on behind it with."""
    found: Mapping[str, Any]
    """At least the fields of `Facts` that the record has, and `sampled` (tokens) where it is known."""
    wrong: str
    """Why it could not be read; then `found` is empty."""
    share: float
    """How much of the file is read with it, from 0.0 to 1.0."""


class Named(TypedDict, total=False):
    """Which episode a record is of. Other programs may have written other types."""

    job: Any
    began: Any


class Facts(Named, total=False):
    """What a list shows of a record."""

    run: Any
    group: Any
    sample: Any
    env: Any
    split: Any
    task: Any
    attempt: Any
    stop: Any
    failure: Any
    reward: Any
    turns: Any
    info: Any


class _FactsAndMask(Facts, total=False):
    mask: Any


def line_head(line: bytes) -> tuple[dict[str, Any], str]:
    """`Head.found` of a line of JSON Lines, and why it cannot be read, if so."""
    try:
        found = fields_of(line, _FactsAndMask)
    except (ValueError, RecursionError) as e:
        return {}, f"it is not a line of JSON: {e}"
    if not isinstance(found, dict):
        return {}, f"it is no trajectory but a {type(found).__name__}"
    if isinstance(mask := found.get("mask"), list):
        found["sampled"] = mask.count(1)
    return found, ""


def fields_of(line: bytes, wanted: type) -> Any:
    """A line's value: of an object at least the fields of `wanted`, a TypedDict. Raises ValueError, RecursionError."""
    try:
        return _decoder(wanted)(line)
    except (ValueError, RecursionError):
        return json.loads(line)  # has what msgspec refuses: half a surrogate pair, numbers beyond 64 bits


@cache
def _decoder(wanted: type) -> Callable[[bytes], Any]:
    try:
        import msgspec
    except ModuleNotFoundError:
        return json.loads
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(wanted).decode
    return decode
