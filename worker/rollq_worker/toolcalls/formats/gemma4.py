"""Gemma 4's format: calls in a notation of their own, with strings between quote tokens.

    <|tool_call>call:f{a:1,b:<|"|>text<|"|>,c:[true,{d:null}]}<tool_call|>

Reasoning is `<|channel>thought ... <channel|>`.
"""

import re
from collections.abc import Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.strict_json import CONSTANTS, MAX_DEPTH, TOO_DEEP, read_number, skip
from rollq_worker.toolcalls.pieces import Kind, Piece, block_reader, broken

_TAGS, _QUOTE = ("<|tool_call>", "<tool_call|>"), '<|"|>'
_CALL = re.compile(r"\s*call:([^\s{}<>:]+)\s*\{")
_KEY = re.compile(r"\s*([^\s{}\[\]:,<>](?:[^{}\[\]:,<>\n]*[^\s{}\[\]:,<>])?)\s*:")
_WORD = re.compile(r"[^\s{}\[\]:,<>]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_FORM = 'Write call:name{key:<|"|>text<|"|>,other:1} between the tool_call tokens.'


class _Wrong(ValueError):
    """What is wrong with a call."""


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    inside = start + len(_TAGS[0])
    try:
        match = _CALL.match(text, inside)
        if match is None:
            raise _Wrong(f"The tool call has no function name. {_FORM}")
        arguments, end = _object(text, match.end(), 1)
        end = skip(text, end)
        if not text.startswith(_TAGS[1], end):
            tail = "was not closed with its end token." if end == len(text) else "has text behind its arguments."
            raise _Wrong(f"The call of {match[1]!r} {tail}")
    except _Wrong as e:
        return [broken(text, start, inside, _TAGS, str(e))]
    return [Piece(Kind.CALL, start, end + len(_TAGS[1]), calls=(Action(match[1], arguments),))]


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Json], int]:
    """Keys and values up to "}"; `at` is behind the "{"."""
    fields = dict[str, Json]()
    at = skip(text, at)
    while not text.startswith("}", at):
        key, at = _key(text, at)
        if key in fields:
            raise _Wrong(f"The tool call names the key {key!r} twice.")
        fields[key], at = _value(text, skip(text, at), depth)
        at = _next(text, at, "}")
    return fields, at + 1


def _list(text: str, at: int, depth: int) -> tuple[list[Json], int]:
    items: list[Json] = []
    at = skip(text, at)
    while not text.startswith("]", at):
        item, at = _value(text, at, depth)
        items.append(item)
        at = _next(text, at, "]")
    return items, at + 1


def _next(text: str, at: int, end: str) -> int:
    """The position after the comma that must stand here, or that of the end tag."""
    at = skip(text, at)
    if text.startswith(",", at):
        at = skip(text, at + 1)
        if not text.startswith(end, at):
            return at
    if text.startswith(end, at):
        return at
    raise _unread(text, at)


def _key(text: str, at: int) -> tuple[str, int]:
    if text.startswith(_QUOTE, at):
        key, at = _string(text, at)
        at = skip(text, at)
        if text.startswith(":", at):
            return key, at + 1
    elif match := _KEY.match(text, at):
        return match[1], match.end()
    raise _unread(text, at)


def _value(text: str, at: int, depth: int) -> tuple[Json, int]:
    if depth > MAX_DEPTH:
        raise _Wrong(TOO_DEEP)
    if text.startswith(_QUOTE, at):
        return _string(text, at)
    if text.startswith("{", at):
        return _object(text, at + 1, depth + 1)
    if text.startswith("[", at):
        return _list(text, at + 1, depth + 1)
    match = _WORD.match(text, at)
    if match and match[0] in CONSTANTS:
        return CONSTANTS[match[0]], match.end()
    if match and _NUMBER.fullmatch(match[0]):
        number, problem = read_number(match[0])
        if problem:
            raise _Wrong(problem)
        return number, match.end()
    raise _unread(text, at)


def _string(text: str, at: int) -> tuple[str, int]:
    inside = at + len(_QUOTE)
    end = text.find(_QUOTE, inside)
    if end < 0:
        raise _Wrong("The tool call is cut off in a string.")
    return text[inside:end], end + len(_QUOTE)


def _unread(text: str, at: int) -> _Wrong:
    if at >= len(text):
        return _Wrong(f"The tool call is cut off. {_FORM}")
    return _Wrong(f"The arguments of the tool call cannot be read at {text[at : at + 12]!r}. {_FORM}")


GEMMA4 = block_reader({_TAGS[0]: _block}, think=("<|channel>thought", "<channel|>"))
