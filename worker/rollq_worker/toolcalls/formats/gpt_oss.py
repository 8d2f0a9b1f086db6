"""OpenAI's harmony format, of gpt-oss: a turn is a row of messages on channels.

<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary
to=functions.f <|constrain|>json<|message|>{"a": 1}

`analysis` is reasoning. A message to `functions.name`, or to the name of a tool, is a call. All
others are for the user. The turn begins after the assistant header `<|start|>assistant`, and its
stop token (`<|call|>` or `<|return|>`) has been taken off.

A header is a role, a recipient, a channel and a content type; `json` and `code` may stand there
without `<|constrain|>`. Headers are no content, so a header that holds anything else is an error.
"""

import re
from collections.abc import Iterator, Sequence

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
    <\|channel\|> \s*+ (?P<channel>\w++) (?:\s++to=(?P<behind>[^\s<]++))?
    (?:\s*+<\|constrain\|>\s*+[\w./+-]++|\s++(?:json|code)\b)? \s*+
    """,
    re.VERBOSE,
)
_FUNCTIONS = "functions."
_CHANNELS = ("analysis", "commentary", "final")
_CHANNEL = re.compile(rf"<\|channel\|>\s*+(?:{'|'.join(_CHANNELS)})\b")
_FORM = (
    "Write <|channel|>name, if need be to=functions.name and <|constrain|>json, then <|message|>."
)


def _pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces: list[Piece] = []
    for start, body, end, after in _messages(text):
        pieces += _message(text, start, body, end, tools)
        if after > pieces[-1].end:
            pieces.append(Piece(Kind.FRAME, end, after))
    return pieces


def _messages(text: str) -> Iterator[tuple[int, int, int, int]]:
    """Yields for each message: the start of its header, the start of its body or -1, the end of its
    body, and the start of the next header.
    """
    at = 0
    while at < len(text):
        inside = at + len(_START) if text.startswith(_START, at) else at
        close, body = first(text, inside, _MESSAGE, *_ENDS), -1
        if close is not None and close[0] == _MESSAGE:
            body = close.end()
            close = first(text, body, *_ENDS)
        end = close.start() if close else len(text)
        # The next message brings its own <|start|>.
        after = end if close is None or close[0] == _START else close.end()
        yield at, body, end if body >= 0 else after, after
        at = after


def _message(text: str, start: int, body: int, end: int, tools: Sequence[Json]) -> list[Piece]:
    if body < 0:
        error = (
            "The turn holds text outside of any channel; write <|channel|>final<|message|> in "
            "front of it."
        )
        return [Piece(Kind.BROKEN, start, end, errors=(error,))]
    header_end = body - len(_MESSAGE)
    header = _HEADER.fullmatch(text, start, header_end)
    if header is None or (header["to"] and header["behind"]) or header["channel"] not in _CHANNELS:
        error = _header_error(text[start:header_end])
        return [Piece(Kind.BROKEN, start, end, errors=(error,))]
    if to := header["to"] or header["behind"]:
        return [_call(text, start, body, end, _tool_name(to, tools), to)]
    frame = Piece(Kind.FRAME, start, body)
    if header["channel"] == "analysis":
        return [frame, Piece(Kind.REASONING, body, end, inner=text[body:end])]
    return [frame, Piece(Kind.TEXT, body, end)]


def _header_error(header: str) -> str:
    role = _ROLE.match(header)
    if role and role[1].strip() not in ("", "assistant"):
        return f"The turn speaks for another role, {role[1].strip()[:40]!r}."
    if not _CHANNEL.search(header):
        return f"A message has no channel; there is {', '.join(_CHANNELS)}."
    return f"The header {header.strip()[:80]!r} cannot be read. {_FORM}"


def _tool_name(to: str, tools: Sequence[Json]) -> str:
    """The tool that a recipient names; "" for none."""
    if to.startswith(_FUNCTIONS) or is_tool(tools, to):
        return to.removeprefix(_FUNCTIONS)
    return ""


def _call(text: str, start: int, body: int, end: int, name: str, to: str) -> Piece:
    if not name:
        error = f"There is no recipient {to[:80]!r}; tools are called as functions.name."
        return Piece(Kind.BROKEN, start, end, errors=(error,))
    message = text[body:end]
    try:
        arguments, at = read_arguments(message, 0, name)
        if skip(message, at) < len(message):
            raise BrokenCall(f"There is text behind the arguments of the call of {name!r}.", at)
    except BrokenCall as e:
        return Piece(Kind.BROKEN, start, end, errors=(str(e),))
    return Piece(Kind.CALL, start, end, calls=(Action(name, arguments),))


READERS = {
    "gpt_oss": Reader(_pieces),
}
