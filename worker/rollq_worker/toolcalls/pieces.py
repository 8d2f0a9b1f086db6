"""A sampled turn cut into pieces: text, reasoning, calls, and calls that cannot be read.

Pieces tile the turn, so no text is lost. Nothing is mended, because a mended call would be trained on: what is wrong is
said in words for the policy. It knows no format of calls, and not which tools exist.

A policy that falls into repeating one tag writes thousands of blocks, so no block may be searched beyond its own end.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Protocol

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn

THINK = ("<think>", "</think>")
_QUOTES = "`'\"“”‘’"
_SPACES = re.compile(r"[ \t\r\n]*")
MAX_ERRORS = 20
"""Errors of a turn that are told one by one."""


class Kind(StrEnum):
    """What a piece of a turn is."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    BROKEN = "broken"
    """A call that cannot be read."""
    FRAME = "frame"
    """Control tokens around the other pieces, which say nothing."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `[start, end)` of the turn. Pieces tile it."""

    kind: Kind
    start: int
    end: int
    calls: tuple[Action, ...] = ()
    errors: tuple[str, ...] = ()
    inner: str = ""
    """Reasoning without its tags."""
    ids: tuple[str, ...] = ()
    """One a call: the id that the model gave it, "" for none; empty in formats without ids."""


Open = Callable[[str, int], Sequence[Piece]]
"""Reads what opens at a place of the turn: at least one piece, the first one starting there."""


class Reader(Protocol):
    """Reads a turn. Never raises."""

    def __call__(self, text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
        """`thinking`: the turn starts inside reasoning; None: if it ends some. `tools`: schemas, for types."""
        ...


def assemble(text: str, pieces: Iterable[Piece]) -> ReadTurn:
    """The turn that these pieces of `text` make up."""
    pieces = list(pieces)
    content = "".join(text[piece.start : piece.end] for piece in pieces if piece.kind in (Kind.TEXT, Kind.BROKEN))
    reasoning = [piece.inner.strip() for piece in pieces if piece.kind is Kind.REASONING]
    errors = _bounded([(error, (piece.start, piece.end)) for piece in pieces for error in piece.errors])
    return ReadTurn(
        content=content.strip(),
        calls=tuple(call for piece in pieces for call in piece.calls),
        errors=tuple(error for error, _ in errors),
        reasoning="\n\n".join(filter(None, reasoning)),
        call_spans=tuple((piece.start, piece.end) for piece in pieces for _ in piece.calls),
        error_spans=tuple(span for _, span in errors),
        call_ids=tuple(id for piece in pieces for id in piece.ids),
    )


def _bounded(errors: list[tuple[str, tuple[int, int]]]) -> list[tuple[str, tuple[int, int]]]:
    """The first errors, and one for all that follow."""
    more = errors[MAX_ERRORS:]
    if not more:
        return errors
    rest = f"There are {len(more)} more errors in the turn.", (more[0][1][0], more[-1][1][1])
    return [*errors[:MAX_ERRORS], rest]


def cut(
    text: str, openers: Mapping[str, Open], thinking: bool | None = False, think: tuple[str, str] = THINK
) -> list[Piece]:
    """The turn cut at every tag of `openers` and of reasoning that is used, not spoken of."""
    pieces: list[Piece] = []
    done = at = 0  # pieces reach to `done`; the search for the next tag goes on at `at`
    if thinking is None:
        thinking = think[1] in text.partition(think[0])[0]
    if thinking:
        pieces.append(reasoning(text, 0, 0, think[1]))
        done = at = pieces[-1].end
    while found := first(text, at, *openers, think[0]):
        start, tag = found.start(), found[0]
        if quoted(text, start, tag):
            at = start + len(tag)
            continue
        if start > done:
            pieces.append(Piece(Kind.TEXT, done, start))
        pieces += openers[tag](text, start) if tag in openers else [reasoning(text, start, start + len(tag), think[1])]
        done = at = pieces[-1].end
    if done < len(text):
        pieces.append(Piece(Kind.TEXT, done, len(text)))
    return pieces


def first(text: str, at: int, *tags: str) -> re.Match[str] | None:
    """The first of these tags from `at` on; the longest, where several begin."""
    return _any_of(tags).search(text, at)


@cache
def _any_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))))


def quoted(text: str, start: int, tag: str) -> bool:
    """The tag stands in quotes by itself: it is spoken of, not used."""
    end = start + len(tag)
    return start > 0 and end < len(text) and text[start - 1] in _QUOTES and text[end] in _QUOTES


def reasoning(text: str, start: int, inside: int, close: str = THINK[1]) -> Piece:
    """The reasoning that starts at `start` and whose words start at `inside`."""
    end = text.find(close, inside)
    if end >= 0:
        return Piece(Kind.REASONING, start, end + len(close), inner=text[inside:end])
    error = "The reasoning was not closed with a think end tag, so nothing after it was read."
    return Piece(Kind.REASONING, start, len(text), errors=(error,), inner=text[inside:])


def broken(text: str, start: int, after: int, error: str, close: str, reopen: str) -> Piece:
    """An unreadable block: to its end tag, or to the next block, or to the end of the turn."""
    found = first(text, after, close, reopen)
    end = len(text) if found is None else found.end() if found[0] == close else found.start()
    return Piece(Kind.BROKEN, start, end, errors=(error,))


def section(
    text: str, start: int, tags: tuple[str, str], call: str, read: Callable[[str, int], Piece]
) -> Sequence[Piece]:
    """A section of calls that opens at `start`: its calls, with the control tokens around them as frame."""
    begin, end = tags
    at = skip(text, start + len(begin))
    pieces = [Piece(Kind.FRAME, start, at)]
    while text.startswith(call, at):
        pieces.append(read(text, at))
        at = skip(text, pieces[-1].end)
        if at > pieces[-1].end:
            pieces.append(Piece(Kind.FRAME, pieces[-1].end, at))
    if len(pieces) == 1:
        return [broken(text, start, at, "There is no tool call in the section of tool calls.", end, begin)]
    if text.startswith(end, at):
        pieces.append(Piece(Kind.FRAME, at, at + len(end)))
    elif not any(piece.errors for piece in pieces):
        error = "The section of tool calls was not closed with its end token."
        pieces[0] = replace(pieces[0], errors=(error,))
    return pieces


def skip(text: str, at: int) -> int:
    """The first place from `at` on that is no white space."""
    spaces = _SPACES.match(text, at)
    return spaces.end() if spaces else at
