"""A sampled turn cut into pieces: text, reasoning, calls, and calls that cannot be read.

The pieces tile the turn, so no text is lost. Nothing is repaired, because a repaired call would be
trained on; what is wrong is told to the policy in sentences. It knows neither formats nor tools.

A policy that repeats one tag writes thousands of blocks, so no block is searched beyond its own
end.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial

from rollq.env import Action
from rollq.job import Json
from rollq_worker.protocols import ReadTurn

THINK = ("<think>", "</think>")
_QUOTES = "`'\"“”‘’"
MAX_ERRORS = 20
"""Number of errors of a turn that are reported one by one."""


class Kind(StrEnum):
    """Kinds of pieces."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    BROKEN = "broken"
    """A call that cannot be read."""
    FRAME = "frame"
    """Control tokens around other pieces, without any content."""


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
    """One per call: the id that the model gave it, "" for none. Empty in formats without ids."""


class BrokenCall(Exception):
    """A call cannot be read beyond `at`. The message is a sentence for the policy."""

    def __init__(self, problem: str, at: int) -> None:
        super().__init__(problem)
        self.at = at


Open = Callable[[str, int, Sequence[Json]], Sequence[Piece]]
"""Reads the block that a tag opens, given the turn, the tag's place and the tools. The first piece
starts at that place.
"""


ReadCalls = Callable[[str, int, Sequence[Json]], tuple[Sequence[Action], int]]
"""Reads calls, given the turn, the place behind their opening tag, and the tools. Returns them and
the end of their block. Raises BrokenCall.
"""


@dataclass(frozen=True, slots=True)
class Reader:
    """One format of calls. Call it to read a turn; it never raises."""

    pieces: Callable[[str, bool | None, Sequence[Json]], list[Piece]]
    """Cuts a turn; the arguments are those of `__call__`."""
    think: tuple[str, str] = THINK
    """The texts that open and close reasoning."""

    def __call__(
        self, text: str, thinking: bool | None = False, tools: Sequence[Json] = ()
    ) -> ReadTurn:
        """Reads a turn. `tools` are the schemas that give types to values.

        `thinking` is true if the turn starts inside reasoning. With None it does if it closes
        reasoning that it has not opened.
        """
        return assemble(text, self.pieces(text, thinking, tools))


def without_calls(reader: Reader) -> Reader:
    """A reader for environments without tools: text that looks like a call is content."""

    def without_call(piece: Piece) -> Piece:
        if piece.kind in (Kind.CALL, Kind.BROKEN):
            return Piece(Kind.TEXT, piece.start, piece.end)
        return piece

    def pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
        return [without_call(piece) for piece in reader.pieces(text, thinking, tools)]

    return Reader(pieces, reader.think)


def block_reader(
    openers: Mapping[str, Open], think: tuple[str, str] = THINK, frames: Sequence[str] = ()
) -> Reader:
    """The reader of a format whose calls are blocks, each opened by a tag of `openers`.

    `frames` are control tokens around the content of a turn.
    """
    opens: dict[str, Open] = {**openers, **{tag: partial(_frame, tag) for tag in frames}}
    return Reader(lambda text, thinking, tools: cut(text, opens, thinking, tools, think), think)


def call_block(tags: tuple[str, str], read: ReadCalls) -> Open:
    """Opens a block between two tags whose calls `read` reads. A block that it cannot read reaches
    to its end tag.
    """

    open_tag, _ = tags

    def open_block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
        try:
            calls, end = read(text, start + len(open_tag), tools)
        except BrokenCall as e:
            return [broken(text, start, e.at, tags, str(e))]
        return [Piece(Kind.CALL, start, end, calls=tuple(calls))]

    return open_block


def _frame(tag: str, text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    return [Piece(Kind.FRAME, start, start + len(tag))]


def assemble(text: str, pieces: Iterable[Piece]) -> ReadTurn:
    """The turn that these pieces of `text` make up."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[Action] = []
    errors: list[str] = []
    ids: list[str] = []
    for piece in pieces:
        if piece.kind is Kind.TEXT or piece.kind is Kind.BROKEN:
            content.append(text[piece.start : piece.end])
        elif piece.kind is Kind.REASONING:
            reasoning.append(piece.inner.strip())
        calls += piece.calls
        errors += piece.errors
        ids += piece.ids
    return ReadTurn(
        content="".join(content).strip(),
        calls=tuple(calls),
        errors=tuple(_bounded(errors)),
        reasoning="\n\n".join(filter(None, reasoning)),
        call_ids=tuple(ids),
    )


def _bounded(errors: list[str]) -> list[str]:
    """The first errors, and one for all that follow."""
    more = len(errors) - MAX_ERRORS
    if more <= 0:
        return errors
    return [*errors[:MAX_ERRORS], f"There are {more} more errors in the turn."]


def cut(
    text: str,
    openers: Mapping[str, Open],
    thinking: bool | None = False,
    tools: Sequence[Json] = (),
    think: tuple[str, str] = THINK,
) -> list[Piece]:
    """The turn cut at the tags of `openers` and of reasoning, except where a tag is only quoted."""
    pieces: list[Piece] = []
    done = 0  # end of the last piece
    at = 0  # where the search for the next tag goes on
    open_think, close_think = think
    if thinking is None:
        before_think, _, _ = text.partition(open_think)
        thinking = close_think in before_think
    if thinking:
        pieces.append(_reasoning(text, 0, 0, close_think))
        done = at = pieces[-1].end
    while match := first(text, at, *openers, open_think):
        start = match.start()
        tag = match[0]
        if _is_quoted(text, start, tag):
            at = start + len(tag)
            continue
        if start > done:
            pieces.append(Piece(Kind.TEXT, done, start))
        if tag in openers:
            pieces += openers[tag](text, start, tools)
        else:
            pieces.append(_reasoning(text, start, start + len(tag), close_think))
        done = at = pieces[-1].end
    if done < len(text):
        pieces.append(Piece(Kind.TEXT, done, len(text)))
    return pieces


def first(text: str, at: int, *tags: str) -> re.Match[str] | None:
    """The first of these tags from `at` on; the longest, where several begin."""
    return _any_of(tags).search(text, at)


@cache
def _any_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(tags, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def _is_quoted(text: str, start: int, tag: str) -> bool:
    """True if the tag stands in quotes by itself, so that the text only mentions it."""
    end = start + len(tag)
    if start == 0 or end == len(text):
        return False
    return text[start - 1] in _QUOTES and text[end] in _QUOTES


def _reasoning(text: str, start: int, inside: int, close: str) -> Piece:
    """The reasoning whose tag starts at `start` and whose words start at `inside`."""
    end = text.find(close, inside)
    if end >= 0:
        return Piece(Kind.REASONING, start, end + len(close), inner=text[inside:end])
    error = "The reasoning was not closed with a think end tag, so nothing after it was read."
    return Piece(Kind.REASONING, start, len(text), errors=(error,), inner=text[inside:])


def unclosed(calls: Sequence[Action]) -> tuple[Action, ...]:
    """The calls of a block that lacks its end tag because the turn ended. Marks the last one, so
    that it is counted.
    """
    return (*calls[:-1], replace(calls[-1], unclosed=True))


def broken(text: str, start: int, after: int, tags: tuple[str, str], *errors: str) -> Piece:
    """A block that cannot be read beyond `after`.

    It reaches to its end tag ("" in formats without one), the next block, or the end of the turn.
    """
    _, close_tag = tags
    next_tag = first(text, after, *filter(None, tags))
    if next_tag is None:
        end = len(text)
    elif next_tag[0] == close_tag:
        end = next_tag.end()
    else:
        end = next_tag.start()
    return Piece(Kind.BROKEN, start, end, errors=errors)
