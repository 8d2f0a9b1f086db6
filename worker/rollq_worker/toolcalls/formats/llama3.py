"""Llama's format: a turn that is JSON, or JSON after the python tag (Llama 3) or the python tokens (Llama 4).

{"name": "f", "parameters": {"a": 1}} <|python_tag|>{"name": "f", "parameters": {"a": 1}}
<|python_start|><|python_end|>{"name": "f", "parameters": {"a": 1}}

Several calls are separated by ";" or ",". JSON after other text is text.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action
from rollq_worker.strict_json import NotJson, skip, strict_json
from rollq_worker.toolcalls.call_object import call_of
from rollq_worker.toolcalls.pieces import Kind, Piece, Reader, cut

_TAGS = ("<|python_tag|>", "<|python_start|><|python_end|>")
_FORM = 'Write {"name": ..., "parameters": {...}} and nothing else.'


def _pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces = cut(text, dict.fromkeys(_TAGS, _calls), thinking)
    first = next((n for n, piece in enumerate(pieces) if _is_spoken(text, piece)), None)
    if first is None or pieces[first].kind is not Kind.TEXT:
        return pieces
    start = skip(text, pieces[first].start)
    if not text.startswith("{", start):
        return pieces
    before = [Piece(Kind.TEXT, pieces[first].start, start)] if start > pieces[first].start else []
    return [*pieces[:first], *before, *_calls(text, start)]


def _is_spoken(text: str, piece: Piece) -> bool:
    return piece.kind is not Kind.REASONING and bool(text[piece.start : piece.end].strip())


def _calls(text: str, start: int, tools: Sequence[Json] = ()) -> Sequence[Piece]:
    """The calls from `start` to the end of the turn: one piece each; the first broken one takes the rest."""
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
    """The call at `at`, or what is wrong with it; and where it ends."""
    try:
        value, problem, end = strict_json(text, at)
    except NotJson as e:
        return f"The tool call is {e} {_FORM}", at
    if problem:
        return problem, end
    if isinstance(value, dict) and "parameters" not in value and "arguments" in value:
        return call_of(value, _FORM), end
    return call_of(value, _FORM, "parameters", "arguments"), end


LLAMA3 = Reader(_pieces)
