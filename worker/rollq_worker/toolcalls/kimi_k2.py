"""Kimi K2's format: calls with ids between control tokens in a section of their own.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    <|tool_calls_section_end|>

The id, `functions.f:0`, holds the tool's name and the number of the call in the conversation.
"""

import re
from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.arguments import json_object
from rollq_worker.toolcalls.pieces import Kind, Piece, assemble, broken, cut, section, skip

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _UNCALL, _ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_ID = re.compile(r"\s*((?:functions\.)?([\w.\-]+):\d+)\s*" + re.escape(_ARGUMENTS))
_FORM = "Write functions.name:number between the tokens."


def read_kimi_k2(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read the calls of a section, and `<think>...</think>`."""
    return assemble(text, kimi_pieces(text, thinking))


def kimi_pieces(text: str, thinking: bool | None = False) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    return cut(text, _OPENERS, thinking)


def _call(text: str, start: int) -> Piece:
    inside = start + len(_CALL)
    match = _ID.match(text, inside)
    if match is None:
        return broken(text, start, inside, f"The id of the tool call cannot be read. {_FORM}", _UNCALL, _CALL)
    arguments, error, end = json_object(text, match.end(), match[2])
    if error:
        return broken(text, start, inside, error, _UNCALL, _CALL)
    end = skip(text, end)
    if not text.startswith(_UNCALL, end):
        tail = "was not closed with its end token." if end == len(text) else "has text behind its arguments."
        return broken(text, start, end, f"The call of {match[2]!r} {tail}", _UNCALL, _CALL)
    return Piece(Kind.CALL, start, end + len(_UNCALL), calls=(Action(match[2], arguments),), ids=(match[1],))


_OPENERS = {
    _BEGIN: lambda text, start: section(text, start, (_BEGIN, _END), _CALL, _call),
    _CALL: lambda text, start: [_call(text, start)],
}
