"""Reads tool calls and reasoning out of a sampled turn; one reader a format.

No text is lost: what is neither a readable call nor reasoning stays in the content, a broken call with its tags
included. Nothing is mended, because a mended call would be trained on: what is wrong is said in words for the policy.
Readers never raise, and do not know which tools exist.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn

MAX_DEPTH = 64
"""Levels of nesting in a call: far from what recursive code behind us can take."""
FORM = 'Write {"name": ..., "arguments": {...}} between the tool_call tags.'
_OPEN, _CLOSE, _THINK, _UNTHINK = "<tool_call>", "</tool_call>", "<think>", "</think>"
_QUOTES = "`'\"“”‘’"
_SPACE = " \t\r\n"


class Kind(StrEnum):
    """What a piece of a turn is."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    BROKEN = "broken"
    """A call that cannot be read."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `[start, end)` of the turn. Pieces tile it."""

    kind: Kind
    start: int
    end: int
    calls: tuple[Action, ...] = ()
    errors: tuple[str, ...] = ()
    inner: str = ""
    """Reasoning without its tags."""


def read_hermes(text: str, thinking: bool = False) -> ReadTurn:
    """Read `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` and `<think>...</think>`; spaces are free.

    `thinking`: the assistant header has opened the reasoning block already.
    """
    pieces = hermes_pieces(text, thinking)
    content = "".join(text[piece.start : piece.end] for piece in pieces if piece.kind in (Kind.TEXT, Kind.BROKEN))
    reasoning = [piece.inner.strip() for piece in pieces if piece.kind is Kind.REASONING]
    return ReadTurn(
        content=content.strip(),
        calls=tuple(call for piece in pieces for call in piece.calls),
        errors=tuple(error for piece in pieces for error in piece.errors),
        reasoning="\n\n".join(filter(None, reasoning)),
    )


def hermes_pieces(text: str, thinking: bool = False) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    pieces: list[Piece] = []
    done = at = 0  # pieces reach to `done`; the search for the next tag goes on at `at`
    if thinking:
        pieces.append(_reasoning(text, 0, 0))
        done = at = pieces[-1].end
    while True:
        found = [(start, tag) for tag in (_OPEN, _THINK) if (start := text.find(tag, at)) >= 0]
        if not found:
            break
        start, tag = min(found)
        if _quoted(text, start, tag):
            at = start + len(tag)
            continue
        if start > done:
            pieces.append(Piece(Kind.TEXT, done, start))
        pieces.append(_call(text, start) if tag == _OPEN else _reasoning(text, start, start + len(tag)))
        done = at = pieces[-1].end
    if done < len(text):
        pieces.append(Piece(Kind.TEXT, done, len(text)))
    return pieces


def _quoted(text: str, start: int, tag: str) -> bool:
    """The tag stands in quotes by itself: it is spoken of, not used."""
    before, after = text[start - 1 : start], text[start + len(tag) : start + len(tag) + 1]
    return bool(before and after) and before in _QUOTES and after in _QUOTES


def _reasoning(text: str, start: int, inside: int) -> Piece:
    end = text.find(_UNTHINK, inside)
    if end >= 0:
        return Piece(Kind.REASONING, start, end + len(_UNTHINK), inner=text[inside:end])
    error = "The reasoning was not closed with a think end tag, so nothing after it was read."
    return Piece(Kind.REASONING, start, len(text), errors=(error,), inner=text[inside:])


def _call(text: str, start: int) -> Piece:
    """The call block that opens at `start`. JSON is read first: a closing tag inside one of its strings is text."""
    inside = start + len(_OPEN)
    try:
        value, problems, end = _json(text, inside)
    except RecursionError:
        return _broken(text, start, inside, f"The tool call is nested deeper than {MAX_DEPTH} levels.")
    except json.JSONDecodeError as e:
        return _broken(text, start, inside, _not_json(text, inside, e))
    end = _skip(text, end)
    if not text.startswith(_CLOSE, end):
        if end == len(text):
            return _broken(text, start, end, "The tool call was not closed with its end tag.")
        return _broken(text, start, end, f"There is text behind the JSON of the tool call. {FORM}")
    end += len(_CLOSE)
    if problems:
        return Piece(Kind.BROKEN, start, end, errors=(problems[0],))
    calls, errors = _actions(value)
    # A list with one broken call is broken as a whole, so that the text of that call is not lost.
    return Piece(Kind.BROKEN, start, end, errors=errors) if errors else Piece(Kind.CALL, start, end, calls=calls)


def _broken(text: str, start: int, after: int, error: str) -> Piece:
    """An unreadable block: to its end tag, or to the next block, or to the end of the turn."""
    close, reopen = text.find(_CLOSE, after), text.find(_OPEN, after)
    if close >= 0 and (reopen < 0 or close < reopen):
        return Piece(Kind.BROKEN, start, close + len(_CLOSE), errors=(error,))
    return Piece(Kind.BROKEN, start, reopen if reopen >= 0 else len(text), errors=(error,))


def _not_json(text: str, inside: int, e: json.JSONDecodeError) -> str:
    if _CLOSE not in text[inside:]:
        return f"The tool call is cut off: its JSON is incomplete or wrong and there is no end tag. {FORM}"
    return f"The tool call is not valid JSON: {e.msg} at character {e.pos - inside}. {FORM}"


def _json(text: str, at: int) -> tuple[Json, list[str], int]:
    """The JSON value at `at`, what is wrong with it though it parses, and where it ends."""
    problems: list[str] = []

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            problems.append(f"The tool call names the key {twice!r} twice.")
        return fields

    def constant(name: str) -> None:
        problems.append(f"The tool call holds {name}, which is not JSON.")

    def integer(digits: str) -> int:
        if len(digits) <= 20 and -(2**63) <= (value := int(digits)) < 2**63:
            return value
        problems.append("The tool call holds an integer of more than 64 bits.")
        return 0

    def real(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            problems.append("The tool call holds a number that is too large.")
        return value

    decoder = json.JSONDecoder(
        object_pairs_hook=unique, parse_constant=constant, parse_int=integer, parse_float=real, strict=True
    )
    value, end = decoder.raw_decode(text, _skip(text, at))
    if (depth := _depth(value)) > MAX_DEPTH:
        problems.insert(0, f"The tool call is nested {depth} levels deep, more than {MAX_DEPTH}.")
    elif _has_surrogate(value):
        problems.append("The tool call holds half of a surrogate pair (\\ud800 to \\udfff), which is no character.")
    return value, problems, end


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _depth(value: Json) -> int:
    """Levels of nesting; a scalar has none."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [item for node in level for item in (node.values() if isinstance(node, dict) else node)]
    return depth


def _has_surrogate(value: Json) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _actions(value: Json) -> tuple[tuple[Action, ...], tuple[str, ...]]:
    """The calls of one block: an object, or a list of objects."""
    read = [_action(item) for item in (value if isinstance(value, list) else [value])]
    errors = tuple(item for item in read if isinstance(item, str))
    if not read:
        errors = (f"The tool call is an empty list. {FORM}",)
    return tuple(item for item in read if isinstance(item, Action)), errors


def _action(value: Json) -> Action | str:
    """One call, or what is wrong with it."""
    if not isinstance(value, dict):
        return f"The tool call is not a JSON object. {FORM}"
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return f'The tool call has no "name". {FORM}'
    if "arguments" not in value and "parameters" in value:
        return f'The tool call has "parameters" where "arguments" belongs. {FORM}'
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        return _from_string(name, arguments)
    if not isinstance(arguments, dict):
        return f'The "arguments" of the call of {name!r} are not a JSON object.'
    return Action(name, arguments)


def _from_string(name: str, arguments: str) -> Action | str:
    """Arguments as a string, as OpenAI's API has them: taken when it holds a JSON object, under the same rules."""
    try:
        value, problems, end = _json(arguments, 0)
    except (RecursionError, json.JSONDecodeError):
        return f'The "arguments" of the call of {name!r} are a string that holds no JSON object.'
    if not isinstance(value, dict) or _skip(arguments, end) != len(arguments):
        return f'The "arguments" of the call of {name!r} are a string that holds no JSON object.'
    return problems[0] if problems else Action(name, value)


PARSERS: Mapping[str, Callable[[str, bool], ReadTurn]] = {"hermes": read_hermes}
"""Readers by the name that a family's record gives."""
