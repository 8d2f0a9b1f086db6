"""Formats whose turns are rows of messages of different kinds: Muse Glimmer's and Inkling's.

     to=self<|message|>I look it up.<|eom|><|start|>assistant to=f<|message|><atem:function_calls>
    <atem:invoke name="f">
    <atem:parameter name="a">1</atem:parameter>
    </atem:invoke>
    </atem:function_calls>

    <|content_thinking|>I look it up.<|end_message|><|message_model|>f<|content_invoke_tool_json|>{"name":"f",
    "args":{"a":1}}<|end_message|>

The prompt ends with the header of the turn's first message. Muse's calls are markup, with types
from the tool's schema; a message to anybody but `self` may hold them. Inkling's are JSON.
"""  # noqa: E501

import re
from collections.abc import Sequence
from dataclasses import replace

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import NotJson, skip, strict_json
from rollq_worker.toolcalls.call_object import NotACall
from rollq_worker.toolcalls.formats.markup import QUOTED, Markup
from rollq_worker.toolcalls.pieces import Kind, Piece, Reader, first

_START = "<|start|>"
_HEADER = re.compile(
    r"(?:<\|start\|>)?\s*+(?:assistant\b)?\s*+(?:to=(?P<to>[^\s<]++))?\s*+<\|message\|>"
)
_ENDS = ("<|eom|>", "<|eot|>", _START)
_ATEM = Markup(
    blocks=(("<atem:function_calls>", "</atem:function_calls>"),),
    function=('<atem:invoke name="', "</atem:invoke>"),
    parameter=('<atem:parameter name="', "</atem:parameter>"),
    name=QUOTED,
    form='Write <atem:invoke name="name"><atem:parameter name="key">value</atem:parameter>'
    "</atem:invoke> between the function_calls tags.",
).reader()


def _muse(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        header = _HEADER.match(text, at)
        close = first(text, header.end() if header else at + 1, *_ENDS)
        end = close.start() if close else len(text)
        if not text[at:end].strip():
            pieces.append(Piece(Kind.TEXT, at, end))
        elif header is None:
            error = (
                "A message has no header. Write to=self, to=user or to=name and "
                "<|message|> in front of it."
            )
            pieces.append(Piece(Kind.BROKEN, at, end, errors=(error,)))
        else:
            pieces += _muse_message(text, at, header, end, tools)
        if close and close[0] != _START:
            pieces.append(Piece(Kind.FRAME, end, close.end()))
        at = max(pieces[-1].end, end)
    return [piece for piece in pieces if piece.end > piece.start]


def _muse_message(
    text: str, start: int, header: re.Match[str], end: int, tools: Sequence[Json]
) -> list[Piece]:
    frame = Piece(Kind.FRAME, start, header.end())
    body = text[header.end() : end]
    if header["to"] == "self":
        return [frame, Piece(Kind.REASONING, header.end(), end, inner=body)]
    offset = header.end()
    pieces = _ATEM.pieces(body, False, tools)
    moved = [replace(p, start=p.start + offset, end=p.end + offset) for p in pieces]
    return [frame, *moved]


_MODEL, _END = "<|message_model|>", "<|end_message|>"
_THINKING = "<|content_thinking|>"
_TEXT = "<|content_text|>"
_INVOKE = "<|content_invoke_tool_json|>"
_FORM = f'Write name{_INVOKE}{{"name": "name", "args": {{...}}}}{_END}.'


def _inkling(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        pieces += _inkling_message(text, at)
        at = pieces[-1].end
    return [piece for piece in pieces if piece.end > piece.start]


def _inkling_message(text: str, start: int) -> list[Piece]:
    """The pieces of the message that starts at `start`."""
    inside = start + len(_MODEL) if text.startswith(_MODEL, start) else start
    kind = first(text, inside, _THINKING, _TEXT, _INVOKE, _END, _MODEL)
    if kind is None or kind[0] in (_END, _MODEL):
        return [_without_kind(text, start, inside)]
    body = kind.end()
    has_name = bool(text[inside : kind.start()].strip())
    if has_name and kind[0] != _INVOKE:
        return [_without_kind(text, start, body)]
    end, after = _message_end(text, body)
    if kind[0] == _INVOKE:
        return [_json_call(text, start, body, end, after)]
    content = Piece(Kind.TEXT, body, end)
    if kind[0] == _THINKING:
        content = Piece(Kind.REASONING, body, end, inner=text[body:end])
    return [Piece(Kind.FRAME, start, body), content, Piece(Kind.FRAME, end, after)]


def _message_end(text: str, body: int) -> tuple[int, int]:
    """Ends of the body of a message and of its end token."""
    close = first(text, body, _END, _MODEL)
    if close is None:
        return len(text), len(text)
    after = close.end() if close[0] == _END else close.start()
    return close.start(), after


def _without_kind(text: str, start: int, body: int) -> Piece:
    error = (
        f"A message does not say what it is. Write {_TEXT}, {_THINKING} or name{_INVOKE} in front "
        "of it."
    )
    _, after = _message_end(text, body)
    return Piece(Kind.BROKEN, start, max(after, start + 1), errors=(error,))


def _json_call(text: str, start: int, body: int, end: int, after: int) -> Piece:
    """The call of the message from `start` to `after`, with JSON from `body` to `end`."""
    if after == end:
        error = f"The tool call was not closed with {_END}."
        return Piece(Kind.BROKEN, start, after, errors=(error,))
    try:
        call = _call_of(text[body:end])
    except NotACall as e:
        return Piece(Kind.BROKEN, start, after, errors=(str(e),))
    return Piece(Kind.CALL, start, after, calls=(call,))


def _call_of(body: str) -> Action:
    """Reads a call. null means no arguments. Raises NotACall."""
    try:
        value, problem, end = strict_json(body)
    except NotJson as e:
        raise NotACall(f"The tool call is {e} {_FORM}") from None
    if problem:
        raise NotACall(problem)
    if skip(body, end) < len(body):
        raise NotACall(f"There is text behind the JSON of the tool call. {_FORM}")
    fields = value if isinstance(value, dict) else {}
    name = fields.get("name")
    arguments = fields.get("args")
    if not isinstance(name, str) or not name:
        raise NotACall(f'The tool call has no "name". {_FORM}')
    if not isinstance(arguments, dict | None):
        raise NotACall(f'The "args" of the call of {name[:80]!r} are not a JSON object.')
    return Action(name, arguments or {})


READERS = {
    "muse": Reader(_muse),
    "inkling": Reader(_inkling, (_THINKING, _END)),
}
