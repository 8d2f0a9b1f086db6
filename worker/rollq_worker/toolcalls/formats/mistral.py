"""Mistral's formats: a JSON list, or a name and its arguments for each call.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}]
    [TOOL_CALLS]f[ARGS]{"a": 1}

The second one may name the call's id, `[CALL_ID]abc123def`, in front of `[ARGS]`. Reasoning is
`[THINK]...[/THINK]`.
"""

import re
from collections.abc import Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.toolcalls.call_object import call_of, read_arguments
from rollq_worker.toolcalls.formats.json_lists import JsonLists
from rollq_worker.toolcalls.pieces import BrokenCall, Kind, Piece, block_reader, broken

_OPEN = "[TOOL_CALLS]"
_LISTS = JsonLists(
    tags=(_OPEN, ""),
    call=call_of,
    form='Write [TOOL_CALLS][{"name": ..., "arguments": {...}}].',
    id="id",
)
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*([^\s\[\]{}]*)\s*)?\[ARGS\]")


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    named = _NAMED.match(text, start + len(_OPEN))
    if named is None:
        return _LISTS.block(text, start, tools)
    try:
        arguments, end = read_arguments(text, named.end(), named[1])
    except BrokenCall as e:
        return [broken(text, start, e.at, _LISTS.tags, str(e))]
    call = Action(named[1], arguments)
    return [Piece(Kind.CALL, start, end, calls=(call,), ids=(named[2] or "",))]


READERS = {
    "mistral": block_reader({_OPEN: _block}, think=("[THINK]", "[/THINK]")),
}
