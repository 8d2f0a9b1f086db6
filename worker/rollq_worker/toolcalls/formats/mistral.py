"""Mistral's formats: a JSON list, or a name and its arguments for each call.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}]
    [TOOL_CALLS]f[ARGS]{"a": 1}

The second one may name the call's id, `[CALL_ID]abc123def`, in front of `[ARGS]`. Reasoning is `[THINK]...[/THINK]`.
"""

import re
from collections.abc import Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.toolcalls.call_object import JsonCalls, read_arguments, read_calls
from rollq_worker.toolcalls.pieces import Kind, Piece, block_reader

_TAG = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*([^\s\[\]{}]*)\s*)?\[ARGS\]")
_FORM = 'Write [TOOL_CALLS][{"name": ..., "arguments": {...}}].'


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    inside = start + len(_TAG)
    if named := _NAMED.match(text, inside):
        arguments, error, end = read_arguments(text, named.end(), named[1])
        call = Action(named[1], arguments)
        read = JsonCalls(end, (call,), (named[2] or "",), (error,) if error else ())
    else:
        read = read_calls(text, inside, _FORM)
    if read.errors:  # a block has no end tag: a broken one reaches to the next, or to the end of the turn
        end = text.find(_TAG, start + 1)
        return [Piece(Kind.BROKEN, start, end if end >= 0 else len(text), errors=read.errors)]
    return [Piece(Kind.CALL, start, read.end, calls=read.calls, ids=read.ids)]


MISTRAL = block_reader({_TAG: _block}, think=("[THINK]", "[/THINK]"))
