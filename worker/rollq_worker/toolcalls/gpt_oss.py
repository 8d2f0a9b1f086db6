"""OpenAI's harmony format, of gpt-oss: a turn is a row of messages on channels.

    <|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary to=functions.f
    <|constrain|>json<|message|>{"a": 1}

`analysis` is reasoning; a message to `functions.name` is a call; everything else is said to the user. The turn begins
behind the assistant header `<|start|>assistant`, and its stop token (`<|call|>` or `<|return|>`) has been taken off.
"""

import re
from collections.abc import Iterator, Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.turn import Kind, Piece, assemble, skip
from rollq_worker.toolcalls.values import json_object

_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_START, _MESSAGE = "<|start|>", "<|message|>"
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w*)")
_TO = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."
_CHANNELS = ("analysis", "commentary", "final")


def read_gpt_oss(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read the messages of a turn in the harmony format."""
    return assemble(text, harmony_pieces(text))


def harmony_pieces(text: str) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    pieces: list[Piece] = []
    for start, body, end, after in _messages(text):
        pieces += _message(text, start, body, end)
        if after > pieces[-1].end:
            pieces.append(Piece(Kind.FRAME, end, after))
    return pieces


def _messages(text: str) -> Iterator[tuple[int, int, int, int]]:
    """Where each message's header starts, its body starts and ends, and the next header starts."""
    at = 0
    while at < len(text):
        body = text.find(_MESSAGE, at)
        if body < 0:
            yield at, -1, len(text), len(text)
            return
        body += len(_MESSAGE)
        close = _END.search(text, body)
        end = close.start() if close else len(text)
        # The next message brings its own <|start|>.
        after = end if close is None or close[0] == _START else close.end()
        yield at, body, end, after
        at = after


def _message(text: str, start: int, body: int, end: int) -> list[Piece]:
    """One message: its header as frame and its body, or all of it as one piece."""
    if body < 0:
        error = "The turn holds text outside of any channel; write <|channel|>final<|message|> in front of it."
        return [Piece(Kind.BROKEN, start, end, errors=(error,))]
    header = text[start : body - len(_MESSAGE)]
    channel, to = _CHANNEL.search(header), _TO.search(header)
    role = re.sub(r"\s*to=\S+", "", header.removeprefix(_START).partition("<|")[0]).strip()
    if role not in ("", "assistant"):
        error = f"The turn speaks for another role, {role[:40]!r}."
        return [Piece(Kind.BROKEN, start, end, errors=(error,))]
    if to is not None:
        return [_call(text, start, body, end, to[1])]
    if channel is None or channel[1] not in _CHANNELS:
        error = f"A message has no channel; there is {', '.join(_CHANNELS)}."
        return [Piece(Kind.BROKEN, start, end, errors=(error,))]
    frame = Piece(Kind.FRAME, start, body)
    if channel[1] == "analysis":
        return [frame, Piece(Kind.REASONING, body, end, inner=text[body:end])]
    return [frame, Piece(Kind.TEXT, body, end)]


def _call(text: str, start: int, body: int, end: int, to: str) -> Piece:
    name = to.removeprefix(_FUNCTIONS)
    if name == to or not name:
        error = f"There is no recipient {to[:80]!r}; tools are called as functions.name."
        return Piece(Kind.BROKEN, start, end, errors=(error,))
    arguments, error, done = json_object(text[:end], body, name)
    if not error and skip(text, done) < end:
        error = f"There is text behind the arguments of the call of {name!r}."
    if error:
        return Piece(Kind.BROKEN, start, end, errors=(error,))
    return Piece(Kind.CALL, start, end, calls=(Action(name, arguments),))
