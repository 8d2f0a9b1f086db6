"""Calls written as Python calls: LFM2's in a list between tokens, Llama 4's and Gemma 3's in a list
as a line of the turn, OLMo 3's on lines between tags.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>
    [f(a=1, b="x"), g()]
    <function_calls>f(a=1, b="x")
    g()</function_calls>

Arguments have names, and values are literals of Python or of JSON. A string may run over lines,
because LFM2.5's template writes it so. LFM2 may also write a list of JSON objects.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import skip
from rollq_worker.toolcalls.call_object import call_of
from rollq_worker.toolcalls.formats.json_lists import JsonLists
from rollq_worker.toolcalls.literals import PYTHON_SOURCE, Cursor, Unreadable
from rollq_worker.toolcalls.pieces import (
    BrokenCall,
    Kind,
    Piece,
    Reader,
    block_reader,
    broken,
    call_block,
    cut,
    unclosed,
)

_NAME = re.compile(r"[^\W\d][\w.\-]*+(?=\s*+\()")
_KEY = re.compile(r"([^\s=(),'\"\[\]{}](?:[^=(),'\"\[\]{}\n]*[^\s=(),'\"\[\]{}])?)\s*+=(?!=)")
"""A key of a schema, so it need not be a name in Python."""
_BARE = re.compile(r"^[ \t]*+\[\s*+[^\W\d][\w.\-]*+\(", re.MULTILINE)
"""A line, or a text behind reasoning, that begins with a call in a list."""
_OBJECTS = re.compile(r"\s*+(?:\[\s*+)?\{")
"""Calls that are JSON after all."""
_ROWS = replace(PYTHON_SOURCE, form='Write name(argument="value", ...) on a line for each call.')
"""OLMo 3's calls, which stand in no list."""


def _calls(cursor: Cursor) -> tuple[Action, ...]:
    """The list of calls. Raises Unreadable."""
    if not cursor.take("["):
        raise cursor.error("the list of calls must begin with '['")
    calls = []
    while not cursor.take("]"):
        calls.append(_call(cursor))
        cursor.take_comma("]", "a call")
    if not calls:
        raise Unreadable(f"The list of tool calls is empty. {PYTHON_SOURCE.form}")
    return tuple(calls)


def _call(cursor: Cursor) -> Action:
    name = cursor.match(_NAME)
    if name is None or not cursor.take("("):
        raise cursor.error("expected a tool's name and '('")
    arguments: dict[str, Json] = {}
    while not cursor.take(")"):
        key = cursor.match(_KEY)
        if key is None:
            raise cursor.error("expected name=value")
        if key[1] in arguments:
            raise Unreadable(
                f"The call of {name[0][:80]!r} names the argument {key[1][:80]!r} twice."
            )
        arguments[key[1]] = cursor.value()
        cursor.take_comma(")", "an argument")
    return Action(name[0], arguments)


def _block(tags: tuple[str, str], text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    """The calls between two tags."""
    open_tag, close_tag = tags
    inside = start + len(open_tag)
    if _OBJECTS.match(text, inside):
        return JsonLists(tags=tags, call=call_of, form=PYTHON_SOURCE.form).block(text, start, tools)
    cursor = Cursor(PYTHON_SOURCE, text, inside)
    try:
        calls = _calls(cursor)
    except Unreadable as e:
        return [broken(text, start, cursor.at, tags, str(e))]
    end = skip(text, cursor.at)
    if end == len(text):
        return [Piece(Kind.CALL, start, end, calls=unclosed(calls))]
    if not text.startswith(close_tag, end):
        error = f"The tool call has text behind its list. {PYTHON_SOURCE.form}"
        return [broken(text, start, end, tags, error)]
    return [Piece(Kind.CALL, start, end + len(close_tag), calls=calls)]


def _rows(text: str, at: int, tools: Sequence[Json]) -> tuple[Sequence[Action], int]:
    """Reads calls on lines up to their end tag."""
    cursor = Cursor(_ROWS, text, skip(text, at))
    calls = []
    while not text.startswith(_OLMO3[1], cursor.at):
        try:
            calls.append(_call(cursor))
        except Unreadable as e:
            raise BrokenCall(str(e), cursor.at) from None
        cursor.take(",")
        cursor.at = skip(text, cursor.at)
    if not calls:
        raise BrokenCall(f"There is no tool call between the tags. {_ROWS.form}", cursor.at)
    return calls, cursor.at + len(_OLMO3[1])


def _pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces: list[Piece] = []
    for piece in cut(text, {_LLAMA4[0]: partial(_block, _LLAMA4)}, thinking):
        pieces += _lists(text, piece) if piece.kind is Kind.TEXT else [piece]
    return pieces


def _lists(text: str, piece: Piece) -> Sequence[Piece]:
    """A text cut at the lines that begin with a list of calls. A list that cannot be read reaches
    to the next one.
    """
    offset = piece.start
    text = text[piece.start : piece.end]
    pieces: list[Piece] = []
    done = 0
    while opening := _BARE.search(text, done):
        start = opening.start()
        if start > done:
            pieces.append(Piece(Kind.TEXT, done, start))
        cursor = Cursor(PYTHON_SOURCE, text, start)
        try:
            calls = _calls(cursor)
            written = text[start : cursor.at].rstrip()  # the next list begins a line, too
            pieces.append(Piece(Kind.CALL, start, start + len(written), calls=calls))
        except Unreadable as e:
            following = _BARE.search(text, opening.end())
            end = following.start() if following else len(text)
            pieces.append(Piece(Kind.BROKEN, start, end, errors=(str(e),)))
        done = pieces[-1].end
    if done < len(text):
        pieces.append(Piece(Kind.TEXT, done, len(text)))
    return [replace(p, start=offset + p.start, end=offset + p.end) for p in pieces]


_LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
_LLAMA4 = ("<|python_start|>", "<|python_end|>")
_OLMO3 = ("<function_calls>", "</function_calls>")


READERS = {
    "olmo3": block_reader({_OLMO3[0]: call_block(_OLMO3, _rows)}),
    "lfm2": block_reader({_LFM2[0]: partial(_block, _LFM2)}),
    "pythonic": Reader(_pieces),
}
