"""What a list of rollouts shows of an exported one: its facts without messages and tokens, which are nearly all of it.

Pure. Finding a rollout's facts takes a fiftieth of the time of reading it.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Head(NamedTuple):
    """One rollout of a file, or a part of the file that could not be read."""

    name: str
    """For people: `line 12`."""
    where: Any
    """What `read_at` of its format finds it by."""
    end: Any
    """What `heads` of its format goes on behind it with."""
    found: Mapping[str, Any]
    """The facts of `rollq.export.record.facts` but messages, and `sampled` (tokens) where it is known."""
    wrong: str
    """Why it could not be read; then `found` is empty."""
    share: float
    """How much of the file is read with it, from 0.0 to 1.0."""


def line_head(line: bytes) -> tuple[dict[str, Any], str]:
    """The facts in a line of JSON Lines, and why it cannot be read, if so."""
    found = _cut(line)
    if found is not None:
        return found, ""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as e:
        return {}, f"it is not a line of JSON: {e}"
    if not isinstance(found, dict):
        return {}, f"it is no trajectory but a {type(found).__name__}"
    if isinstance(mask := found.get("mask"), list):
        found["sampled"] = sum(sampled == 1 for sampled in mask)
    return {name: value for name, value in found.items() if name not in _BODIES}, ""


_BODIES = frozenset(
    {
        "messages",
        "conversations",
        "steps",
        "tokens",
        "mask",
        "logprobs",
        "versions",
        "traces",
        "pieces",
        "times",
        "unanswered",
    }
)


def _cut(line: bytes) -> dict[str, Any] | None:
    """The facts of a line that rollq wrote, without parsing its bodies; None for any other line.

    In a text, each quote has a backslash before it, so the names that are looked for are names. In a mapping within the
    facts they could be names too, but then braces and brackets do not match, and what is cut out is no JSON.
    """
    messages = line.find(b',"messages":[')
    tokens = line.find(b'},"tokens":[', messages)
    info = line.rfind(b'],"info":{', messages, tokens)
    pieces = line.rfind(b',"pieces":[', tokens)
    if not 0 < messages < info < tokens < pieces:
        return None
    try:
        found = json.loads(line[:messages] + line[info + 1 : tokens + 1] + b"}")
        lengths = json.loads(line[pieces + len(b',"pieces":') : line.index(b"]]", pieces) + 2])
        return {**found, "sampled": sum(piece[0] for piece in lengths)}
    except (ValueError, TypeError, LookupError):
        return None
