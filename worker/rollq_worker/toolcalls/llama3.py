"""Llama's format: a turn that is JSON, or JSON behind the python tag (Llama 3) or the python tokens (Llama 4).

    {"name": "f", "parameters": {"a": 1}}
    <|python_tag|>{"name": "f", "parameters": {"a": 1}}
    <|python_start|><|python_end|>{"name": "f", "parameters": {"a": 1}}

Several calls are separated by ";" or ",". JSON behind other text is text.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.arguments import MAX_DEPTH, NotJson, not_json, strict_json
from rollq_worker.toolcalls.hermes import action
from rollq_worker.toolcalls.pieces import Kind, Piece, assemble, cut, skip

_TAGS = ("<|python_tag|>", "<|python_start|><|python_end|>")
_FORM = 'Write {"name": ..., "parameters": {...}} and nothing else.'


def read_llama3(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read `{"name": ..., "parameters": {...}}` at the start of a turn, or behind the python tag."""
    return assemble(text, llama_pieces(text, thinking))


def llama_pieces(text: str, thinking: bool | None = False) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    pieces = cut(text, dict.fromkeys(_TAGS, _calls), thinking)
    first = next((n for n, piece in enumerate(pieces) if _spoken(text, piece)), None)
    if first is None or pieces[first].kind is not Kind.TEXT:
        return pieces
    start = skip(text, pieces[first].start)
    if not text.startswith("{", start):
        return pieces
    before = [Piece(Kind.TEXT, pieces[first].start, start)] if start > pieces[first].start else []
    return [*pieces[:first], *before, *_calls(text, start)]


def _spoken(text: str, piece: Piece) -> bool:
    return piece.kind is not Kind.REASONING and bool(text[piece.start : piece.end].strip())


def _calls(text: str, start: int) -> Sequence[Piece]:
    """The calls from `start` to the end of the turn: one piece each, or one broken piece."""
    pieces: list[Piece] = []
    at = start + len(next((tag for tag in _TAGS if text.startswith(tag, start)), ""))
    while True:
        call, end = _call(text, at)
        if isinstance(call, str):
            return [*pieces, Piece(Kind.BROKEN, start, len(text), errors=(call,))]
        more = skip(text, end)
        if more < len(text) and text[more] in ";,":
            more = skip(text, more + 1)
        pieces.append(Piece(Kind.CALL, start, more, calls=(call,)))
        if more == len(text):
            return pieces
        start = at = more


def _call(text: str, at: int) -> tuple[Action | str, int]:
    try:
        value, problems, end = strict_json(text, at)
    except RecursionError:
        return f"The tool call is nested deeper than {MAX_DEPTH} levels.", at
    except NotJson as e:
        return f"The tool call is {not_json(text, at, e)} {_FORM}", at
    if problems:
        return problems[0], end
    if isinstance(value, dict) and "parameters" not in value and "arguments" in value:
        return action(value, form=_FORM), end
    return action(value, "parameters", "arguments", _FORM), end
