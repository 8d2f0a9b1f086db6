"""Hermes' format, also of Qwen2.5, Qwen3 and Granite 4: JSON in tags.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

White space is free; a list in a block is several calls. A turn may end without the last end tag, because SGLang's
parser takes such a call.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.strict_json import skip
from rollq_worker.toolcalls.call_object import read_calls
from rollq_worker.toolcalls.pieces import Kind, Piece, block_reader, broken, unclosed

_TAGS = ("<tool_call>", "</tool_call>")
_FORM = 'Write {"name": ..., "arguments": {...}} between the tool_call tags.'


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    """The block that opens at `start`. Its JSON is read first: an end tag inside one of its strings is text."""
    end, calls, _, errors = read_calls(text, start + len(_TAGS[0]), _FORM)
    after = skip(text, end)
    closed = text.startswith(_TAGS[1], after)
    if not errors and not closed and after < len(text):
        errors = (f"There is text behind the JSON of the tool call. {_FORM}",)
    if errors:
        return [broken(text, start, end, _TAGS, *errors)]
    if not closed:
        return [Piece(Kind.CALL, start, after, calls=unclosed(calls))]
    return [Piece(Kind.CALL, start, after + len(_TAGS[1]), calls=calls)]


HERMES = block_reader({_TAGS[0]: _block})
