"""MiniMax M2's format: calls and their parameters in XML.

    <minimax:tool_call>
    <invoke name="f">
    <parameter name="a">1</parameter>
    </invoke>
    </minimax:tool_call>

A value is taken as it stands; its type is what the tool's schema says.
"""

import re
from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.turn import Kind, Piece, assemble, broken, cut, skip
from rollq_worker.toolcalls.values import parameters, typed

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE = re.compile(r'<invoke name="([^"<>\s]+)">')
_PARAMETER = re.compile(r'<parameter name="([^"<>]+)">')
_UNINVOKE, _UNPARAMETER = "</invoke>", "</parameter>"
_FORM = 'Write <invoke name="name"><parameter name="key">value</parameter></invoke> between the tool_call tags.'


def read_minimax_m2(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read `<minimax:tool_call><invoke ...>...</invoke></minimax:tool_call>` and `<think>...</think>`."""
    return assemble(text, minimax_pieces(text, thinking, tools))


def minimax_pieces(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> list[Piece]:
    """The turn cut into pieces that tile it."""

    def block(text: str, start: int) -> Sequence[Piece]:
        calls, error, end = _calls(text, start + len(_OPEN), tools)
        if error:
            return [broken(text, start, end, error, _CLOSE, _OPEN)]
        return [Piece(Kind.CALL, start, end, calls=tuple(calls))]

    return cut(text, {_OPEN: block}, thinking)


def _calls(text: str, at: int, tools: Sequence[Json]) -> tuple[list[Action], str, int]:
    """The calls of a block, what is wrong ("": nothing), and where reading ended."""
    calls: list[Action] = []
    at = skip(text, at)
    while match := _INVOKE.match(text, at):
        name = match[1]
        arguments, error, at = _arguments(text, match.end(), name, tools)
        if error:
            return [], error, at
        calls.append(Action(name, arguments))
        at = skip(text, at)
    if not calls:
        return [], f"The tool call holds no function. {_FORM}", at
    if not text.startswith(_CLOSE, at):
        tail = "was not closed with its end tag." if at == len(text) else f"holds more than functions. {_FORM}"
        return [], f"The tool call {tail}", at
    return calls, "", at + len(_CLOSE)


def _arguments(text: str, at: int, name: str, tools: Sequence[Json]) -> tuple[dict[str, Json], str, int]:
    schemas, arguments = parameters(tools, name), dict[str, Json]()
    at = skip(text, at)
    while match := _PARAMETER.match(text, at):
        key, at = match[1], match.end()
        end = text.find(_UNPARAMETER, at)
        value = text[at:end] if end >= 0 else text[at:]
        if end < 0 or _PARAMETER.search(value) or _UNINVOKE in value:
            return {}, f"The parameter {key!r} of the call of {name!r} was not closed with </parameter>.", at
        if key in arguments:
            return {}, f"The tool call names the parameter {key!r} twice.", end
        arguments[key] = typed(value, schemas.get(key))
        at = skip(text, end + len(_UNPARAMETER))
    if text.startswith(_UNINVOKE, at):
        return arguments, "", at + len(_UNINVOKE)
    if at == len(text):
        return {}, f"The call of {name!r} is cut off: it was not closed with </invoke>.", at
    return {}, f"The call of {name!r} holds more than parameters. {_FORM}", at
