"""Hermes' format, also of Qwen2.5, Qwen3 and Granite 4: JSON in tags.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

White space is free; a list in a block is several calls.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.strict_json import skip
from rollq_worker.toolcalls.call_object import read_calls
from rollq_worker.toolcalls.pieces import Kind, Piece, block_reader, broken

_TAGS = ("<tool_call>", "</tool_call>")
_FORM = 'Write {"name": ..., "arguments": {...}} between the tool_call tags.'


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    """The block that opens at `start`. Its JSON is read first: an end tag inside one of its strings is text."""
    end, calls, _, errors = read_calls(text, start + len(_TAGS[0]), _FORM)
    after = skip(text, end)
    if not errors and not text.startswith(_TAGS[1], after):
        behind = f"There is text behind the JSON of the tool call. {_FORM}"
        errors = ("The tool call was not closed with its end tag." if after == len(text) else behind,)
    if errors:
        return [broken(text, start, end, _TAGS, *errors)]
    return [Piece(Kind.CALL, start, after + len(_TAGS[1]), calls=calls)]


HERMES = block_reader({_TAGS[0]: _block})
