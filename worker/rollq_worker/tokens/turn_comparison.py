"""Compares a template's own text of a turn with the sampled turn.

The same reasoning, words and calls in the same order say the same. White space around them, the
notation of a call and the split into ids may differ. It does not know templates.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.toolcalls.pieces import Kind, Reader

_Part = tuple[Kind, object]


def says_the_same(
    reader: Reader, sampled: str, written: str, thinking: bool | None, tools: Sequence[Json]
) -> bool:
    """Compares two texts of a turn. `thinking` and `tools` are those of the reader.

    A call in `written` counts only if `sampled` has one. Otherwise it was made up for a template
    that wants one before a complaint.
    """
    if sampled == written:
        return True
    sampled_parts = _parts(reader, sampled, thinking, tools)
    written_parts = _parts(reader, written, thinking, tools)
    if all(kind is not Kind.CALL for kind, _ in sampled_parts):
        written_parts = [part for part in written_parts if part[0] is not Kind.CALL]
    return sampled_parts == written_parts


def _parts(reader: Reader, text: str, thinking: bool | None, tools: Sequence[Json]) -> list[_Part]:
    parts: list[_Part] = []
    for piece in reader.pieces(text, thinking, tools):
        words = text[piece.start : piece.end].strip()
        if piece.kind is Kind.CALL:
            parts += [(Kind.CALL, call) for call in piece.calls]
        elif piece.kind is Kind.REASONING:
            parts.append((Kind.REASONING, (piece.inner.strip(), piece.errors)))
        elif words and piece.kind is not Kind.FRAME:
            parts.append((Kind.TEXT, words))
    return parts
