"""DeepSeek's formats: calls between control tokens in a section of their own.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3 and R1 write `function<｜tool▁sep｜>f`, a line break and the arguments in a fenced block of JSON instead.
"""

import re
from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.arguments import json_object
from rollq_worker.toolcalls.pieces import Kind, Piece, assemble, broken, cut, section, skip

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _UNCALL, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCED = re.compile(r"\s*function" + _SEP + r"\s*([^\s<]+)\s*```json\s*")
_PLAIN = re.compile(r"\s*([^\s<]+)\s*" + _SEP)


def read_deepseek_v31(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read the calls of a section, in V3.1's or V3's form, and `<think>...</think>`."""
    return assemble(text, deepseek_pieces(text, thinking))


def deepseek_pieces(text: str, thinking: bool | None = False) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    return cut(text, _OPENERS, thinking)


def _call(text: str, start: int) -> Piece:
    inside = start + len(_CALL)
    match = _FENCED.match(text, inside) or _PLAIN.match(text, inside)
    if match is None:
        return broken(text, start, inside, "The tool call has no function name.", _UNCALL, _CALL)
    name = match[1]
    arguments, error, end = json_object(text, match.end(), name)
    if error:
        return broken(text, start, inside, error, _UNCALL, _CALL)
    end = skip(text, end)
    if match.re is _FENCED and text.startswith("```", end):
        end = skip(text, end + 3)
    if not text.startswith(_UNCALL, end):
        tail = "was not closed with its end token." if end == len(text) else "has text behind its arguments."
        return broken(text, start, end, f"The call of {name!r} {tail}", _UNCALL, _CALL)
    return Piece(Kind.CALL, start, end + len(_UNCALL), calls=(Action(name, arguments),))


_OPENERS = {
    _BEGIN: lambda text, start: section(text, start, (_BEGIN, _END), _CALL, _call),
    _CALL: lambda text, start: [_call(text, start)],
}
