"""OpenAI's harmony format, of gpt-oss: a turn is a row of messages on channels.

<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary
to=functions.f <|constrain|>json<|message|>{"a": 1}

`analysis` is reasoning. A message to `functions.name`, or to the name of a tool, is a call. All
others are for the user. The turn begins after the assistant header `<|start|>assistant`, and its
stop token (`<|call|>` or `<|return|>`) has been taken off.

A header is a role, a recipient, a channel and a content type; `json` and `code` may stand there
without `<|constrain|>`. A header is not part of the content, so anything else in it is an error.
White space around messages belongs to the format.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import skip
from rollq_worker.toolcalls.call_object import read_arguments
from rollq_worker.toolcalls.pieces import BrokenCall, Kind, Piece, Reader, first
from rollq_worker.toolcalls.schema_types import is_tool

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = (_START, "<|end|>", "<|call|>", "<|return|>")
_ROLE = re.compile(r"(?:<\|start\|>)?\s*+((?:(?!\bto=)[^<])*)")
_HEADER = re.compile(
    r"""
    (?:<\|start\|>)? \s*+ (?:assistant\b)? \s*+ (?:to=(?P<to>[^\s<]++))? \s*+
    <\|channel\|> \s*+ (?P<channel>\w++) (?:\s++to=(?P<to_after_channel>[^\s<]++))?
    (?:\s*+<\|constrain\|>\s*+[\w./+-]++|\s++(?:json|code)\b)? \s*+
    """,
    re.VERBOSE,
)
_PREFIX = "functions."
_CHANNELS = ("analysis", "commentary", "final")
_CHANNEL = re.compile(rf"<\|channel\|>\s*+(?:{'|'.join(_CHANNELS)})\b")
_FORM = (
    "Write <|channel|>name, if need be to=functions.name and <|constrain|>json, then <|message|>."
)


class _Message(NamedTuple):
    """Place of one message in the text of a turn."""

    start: int
    """Start of its header."""
    body: int | None
    """Start of its body; None for text outside of any channel."""
    end: int
    """End of its body, or of the text outside of any channel."""
    next_start: int
    """Start of the next header, behind the end token if there is one."""


def _pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces: list[Piece] = []
    for message in _messages(text):
        pieces += _pieces_of(text, message, tools)
        if message.next_start > pieces[-1].end:
            pieces.append(Piece(Kind.FRAME, message.end, message.next_start))
    return pieces


def _messages(text: str) -> Iterator[_Message]:
    start = 0
    while start < len(text):
        header = start + len(_START) if text.startswith(_START, start) else start
        body = None
        tag = first(text, header, _MESSAGE, *_ENDS)
        if tag is not None and tag[0] == _MESSAGE:
            body = tag.end()
            tag = first(text, body, *_ENDS)
        end = next_start = len(text)
        if tag is not None:
            end = tag.start()
            # The next message brings its own <|start|>.
            next_start = end if tag[0] == _START else tag.end()
        yield _Message(start, body, end, next_start)
        start = next_start


def _pieces_of(text: str, message: _Message, tools: Sequence[Json]) -> list[Piece]:
    start, body, end, next_start = message
    if body is None:
        if not text[start:end].strip():
            return [Piece(Kind.FRAME, start, next_start)]
        error = (
            "The turn holds text outside of any channel; write <|channel|>final<|message|> in "
            "front of it."
        )
        return [Piece(Kind.BROKEN, start, next_start, errors=(error,))]
    header_end = body - len(_MESSAGE)
    header = _HEADER.fullmatch(text, start, header_end)
    has_two_recipients = header and header["to"] and header["to_after_channel"]
    if header is None or has_two_recipients or header["channel"] not in _CHANNELS:
        error = _header_error(text[start:header_end])
        return [Piece(Kind.BROKEN, start, end, errors=(error,))]
    recipient = header["to"] or header["to_after_channel"]
    if recipient:
        return [_call(text, message, recipient, tools)]
    frame = Piece(Kind.FRAME, start, body)
    if header["channel"] == "analysis":
        return [frame, Piece(Kind.REASONING, body, end, inner=text[body:end])]
    return [frame, Piece(Kind.TEXT, body, end)]


def _header_error(header: str) -> str:
    role = _ROLE.match(header)
    if role and role[1].strip() not in ("", "assistant"):
        return f"The turn speaks for another role, {role[1].strip()[:40]!r}."
    if not _CHANNEL.search(header):
        return f"A message has no channel; the channels are {', '.join(_CHANNELS)}."
    return f"The header {header.strip()[:80]!r} cannot be read. {_FORM}"


def _tool_name(recipient: str, tools: Sequence[Json]) -> str:
    """The tool that a recipient names; "" for none."""
    if recipient.startswith(_PREFIX) or is_tool(tools, recipient):
        return recipient.removeprefix(_PREFIX)
    return ""


def _call(text: str, message: _Message, recipient: str, tools: Sequence[Json]) -> Piece:
    start, body, end, _ = message
    name = _tool_name(recipient, tools)
    if not name:
        error = f"There is no recipient {recipient[:80]!r}; tools are called as functions.name."
        return Piece(Kind.BROKEN, start, end, errors=(error,))
    content = text[body:end]
    try:
        arguments, at = read_arguments(content, 0, name)
        if skip(content, at) < len(content):
            problem = f"There is text behind the arguments of the call of {name[:80]!r}."
            raise BrokenCall(problem, at)
    except BrokenCall as e:
        return Piece(Kind.BROKEN, start, end, errors=(str(e),))
    return Piece(Kind.CALL, start, end, calls=(Action(name, arguments),))


READERS = {
    "gpt_oss": Reader(_pieces),
}
