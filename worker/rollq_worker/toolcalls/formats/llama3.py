"""Formats whose turn is JSON: Llama's, also after the python tag (Llama 3) or the python tokens
(Llama 4), and xLAM's list.

    {"name": "f", "parameters": {"a": 1}}
    <|python_tag|>{"name": "f", "parameters": {"a": 1}}
    <|python_start|><|python_end|>{"name": "f", "parameters": {"a": 1}}
    [{"name": "f", "arguments": {"a": 1}}]

Several calls of Llama's are separated by ";" or ",". JSON after other text is text. So is a turn
that begins with a bracket but not as a call does: prose, and JSON that the user asked for.
"""

import re
from collections.abc import Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import NotJson, skip, strict_json
from rollq_worker.toolcalls.call_object import ARGUMENT_KEYS, NotACall, call_of
from rollq_worker.toolcalls.pieces import Kind, Piece, Reader, cut
from rollq_worker.toolcalls.schema_types import is_tool

_TAGS = ("<|python_tag|>", "<|python_start|><|python_end|>")
_FORM = 'Write {"name": ..., "parameters": {...}} and nothing else.'
_LIST_FORM = 'Write [{"name": ..., "arguments": {...}}] and nothing else.'
_LIST = re.compile(r"""\[\s*\{\s*["'](?:name|parameters|arguments)["']\s*:""")
_BEGINNING = re.compile(r"""\{\s*["'](?:name|parameters|arguments|function|type)["']\s*:""")


def _pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces = cut(text, dict.fromkeys(_TAGS, _tagged), thinking, tools)
    first = next((n for n, piece in enumerate(pieces) if _is_spoken(text, piece)), None)
    if first is None or pieces[first].kind is not Kind.TEXT:
        return pieces
    start = skip(text, pieces[first].start)
    if not _is_meant(text, start, tools):
        return pieces
    before = [Piece(Kind.TEXT, pieces[first].start, start)] if start > pieces[first].start else []
    return [*pieces[:first], *before, *_calls(text, start, start, tools)]


def _list_pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    """A turn that may be a list of calls behind its reasoning."""
    pieces = cut(text, {}, thinking, tools)
    if not pieces or pieces[-1].kind is not Kind.TEXT:
        return pieces
    last = pieces.pop()
    start = skip(text, last.start)
    if not _is_meant_as_list(text, start, tools):
        return [*pieces, last]
    try:
        calls, end = _list_of_calls(text, start)
    except NotACall as e:
        return [*pieces, Piece(Kind.BROKEN, last.start, len(text), errors=(str(e),))]
    pieces.append(Piece(Kind.CALL, last.start, end, calls=tuple(calls)))
    if end < len(text):
        pieces.append(Piece(Kind.TEXT, end, len(text)))
    return pieces


def _list_of_calls(text: str, at: int) -> tuple[list[Action], int]:
    """Reads the list at `at`. Returns its calls and its end. Raises NotACall."""
    try:
        values, problem, end = strict_json(text, at)
    except NotJson as e:
        raise NotACall(f"The tool call is {e} {_LIST_FORM}") from None
    if problem:
        raise NotACall(problem)
    return [call_of(value, _LIST_FORM) for value in values], end


def _is_meant_as_list(text: str, at: int, tools: Sequence[Json]) -> bool:
    """True if the text at `at` was meant as a list of calls: one of them is like a call, or the
    text cannot be read and begins as one.
    """
    if not text.startswith("[", at):
        return False
    begins_as_call = bool(_LIST.match(text, at))
    try:
        values, problem, _ = strict_json(text, at)
    except NotJson:
        return begins_as_call
    if problem:
        return begins_as_call
    return any(_is_like_a_call(value, tools) for value in values)


def _is_spoken(text: str, piece: Piece) -> bool:
    return piece.kind is not Kind.REASONING and bool(text[piece.start : piece.end].strip())


def _is_meant(text: str, at: int, tools: Sequence[Json]) -> bool:
    """True if the text at `at` was meant as a call: an object that begins with a key of calls, or
    one with arguments or the name of a tool.
    """
    begins_as_call = bool(_BEGINNING.match(text, at))
    try:
        value, problem, _ = strict_json(text, at)
    except NotJson:
        return begins_as_call
    if problem or not isinstance(value, dict):
        return begins_as_call
    return _is_like_a_call(value, tools)


def _is_like_a_call(value: Json, tools: Sequence[Json]) -> bool:
    """True for an object with arguments or the name of a tool."""
    if not isinstance(value, dict):
        return False
    if not value.keys().isdisjoint(ARGUMENT_KEYS) or value.get("type") == "function":
        return True
    name = value.get("name")
    return isinstance(name, str) and is_tool(tools, name)


def _tagged(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    tag = next(tag for tag in _TAGS if text.startswith(tag, start))
    return _calls(text, start, start + len(tag), tools)


def _calls(text: str, start: int, at: int, tools: Sequence[Json]) -> Sequence[Piece]:
    """Reads the calls from `start` to the end of the turn, one piece each. The first is at `at`.

    The first broken call takes the rest. Text that is not meant as a call stays text.
    """
    pieces: list[Piece] = []
    while True:
        try:
            call, end = _call(text, at)
        except NotACall as e:
            return [*pieces, Piece(Kind.BROKEN, start, len(text), errors=(str(e),))]
        more = skip(text, end)
        if more < len(text) and text[more] in ";,":
            more = skip(text, more + 1)
        pieces.append(Piece(Kind.CALL, start, more, calls=(call,)))
        if more == len(text):
            return pieces
        start = more
        at = start + len(next((tag for tag in _TAGS if text.startswith(tag, start)), ""))
        if at == start and not _is_meant(text, at, tools):
            return [*pieces, Piece(Kind.TEXT, at, len(text))]


def _call(text: str, at: int) -> tuple[Action, int]:
    """Reads the call at `at`. Returns it and its end. Raises NotACall."""
    try:
        value, problem, end = strict_json(text, at)
    except NotJson as e:
        raise NotACall(f"The tool call is {e} {_FORM}") from None
    if problem:
        raise NotACall(problem)
    return call_of(value, _FORM), end


READERS = {
    "xlam": Reader(_list_pieces),
    "llama3": Reader(_pieces),
}
