"""Functionary's formats: a name and JSON, in a tag (v3.1) or as a message to a recipient (v3.2).

    <function=f>{"a": 1}</function><function=g>{}</function>

    all
    I look it up.>>>f
    {"a": 1}>>>g
    {}

In v3.2 the assistant header ends with `>>>`, so a turn begins with a recipient. What is said to `all` is for the user.
"""

import re
from collections.abc import Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.strict_json import skip
from rollq_worker.toolcalls.call_object import read_arguments
from rollq_worker.toolcalls.pieces import Kind, Piece, Reader, block_reader, broken

_TAGS = ("<function=", "</function>")
_FORM = "Write <function=name>{...}</function>."
_NAME = re.compile(r"([^\s<>](?:[^<>\n]*[^\s<>])?)>")
_ALL = "all"
_RECIPIENT = re.compile(r"(?:>>>|\A)([\w.-]+)\n")
_NEXT = re.compile(r">>>[\w.-]+\n")


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    """The call that opens at `start`."""
    inside = start + len(_TAGS[0])
    name = _NAME.match(text, inside)
    if name is None:
        return [broken(text, start, inside, _TAGS, f"The tool call has no function name. {_FORM}")]
    arguments, error, end = read_arguments(text, name.end(), name[1])
    after = skip(text, end)
    if not error and not text.startswith(_TAGS[1], after):
        tail = "was not closed with </function>" if after == len(text) else "has text behind its arguments"
        error = f"The call of {name[1]!r} {tail}. {_FORM}"
    if error:
        return [broken(text, start, end, _TAGS, error)]
    return [Piece(Kind.CALL, start, after + len(_TAGS[1]), calls=(Action(name[1], arguments),))]


def _messages(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    """A turn cut at its recipients."""
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        head = _RECIPIENT.match(text, at)
        after = _NEXT.search(text, head.end() if head else at + 1)
        end = after.start() if after else len(text)
        if head is None:
            error = "The turn does not begin with a recipient. Write the tool's name, or all, and a line break first."
            pieces.append(Piece(Kind.BROKEN, at, end, errors=(error,)))
        elif head[1] == _ALL:
            pieces += [Piece(Kind.FRAME, at, head.end()), Piece(Kind.TEXT, head.end(), end)]
        else:
            pieces.append(_call(text, at, head))
        at = pieces[-1].end
    return pieces


def _call(text: str, start: int, head: re.Match[str]) -> Piece:
    """The call to a recipient. Its JSON is read first: a recipient inside one of its strings is text."""
    arguments, error, end = read_arguments(text, head.end(), head[1])
    after = skip(text, end)
    if not error and after < len(text) and not _NEXT.match(text, after):
        error = f"There is text behind the arguments of the call of {head[1]!r}."
    if not error:
        return Piece(Kind.CALL, start, after, calls=(Action(head[1], arguments),))
    following = _NEXT.search(text, end)
    return Piece(Kind.BROKEN, start, following.start() if following else len(text), errors=(error,))


FUNCTIONARY31 = block_reader({_TAGS[0]: _block})
FUNCTIONARY32 = Reader(_messages)
