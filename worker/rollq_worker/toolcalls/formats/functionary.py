"""Functionary v3.2's format: a turn is a row of messages to recipients. A message to a tool is its
arguments.

    all
    I look it up.>>>f
    {"a": 1}>>>g
    {}

The assistant header ends with `>>>`, so a turn begins with a recipient. Messages to `all` are for
the user.
"""

import re
from collections.abc import Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import skip
from rollq_worker.toolcalls.call_object import read_arguments
from rollq_worker.toolcalls.pieces import BrokenCall, Kind, Piece, Reader

_RECIPIENT = re.compile(r"(?:>>>|\A)([\w.-]+)\n")
_NEXT = re.compile(r">>>[\w.-]+\n")


def _messages(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    """A turn cut at its recipients."""
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        head = _RECIPIENT.match(text, at)
        after = _NEXT.search(text, head.end() if head else at + 1)
        end = after.start() if after else len(text)
        if head is None:
            error = (
                "The turn does not begin with a recipient. Write the tool's name, or all, "
                "and a line break first."
            )
            pieces.append(Piece(Kind.BROKEN, at, end, errors=(error,)))
        elif head[1] == "all":
            pieces += [Piece(Kind.FRAME, at, head.end()), Piece(Kind.TEXT, head.end(), end)]
        else:
            pieces.append(_call(text, at, head))
        at = pieces[-1].end
    return pieces


def _call(text: str, start: int, head: re.Match[str]) -> Piece:
    """Reads the call to a recipient, JSON first: a recipient inside a string of it is text."""
    try:
        arguments, end = read_arguments(text, head.end(), head[1])
        after = skip(text, end)
        if after < len(text) and not _NEXT.match(text, after):
            raise BrokenCall(
                f"There is text behind the arguments of the call of {head[1][:80]!r}.", end
            )
    except BrokenCall as e:
        following = _NEXT.search(text, e.at)
        broken_end = following.start() if following else len(text)
        return Piece(Kind.BROKEN, start, broken_end, errors=(str(e),))
    return Piece(Kind.CALL, start, after, calls=(Action(head[1], arguments),))


READERS = {
    "functionary_v32": Reader(_messages),
}
