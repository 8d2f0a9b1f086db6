"""Formats whose turns are rows of messages. Each says what it is: Muse Glimmer's and Inkling's.

     to=self<|message|>I look it up.<|eom|><|start|>assistant to=f<|message|><atem:function_calls>
    <atem:invoke name="f">
    <atem:parameter name="a">1</atem:parameter>
    </atem:invoke>
    </atem:function_calls>

    <|content_thinking|>I look it up.<|end_message|><|message_model|>f<|content_invoke_tool_json|>{"name":"f",
    "args":{"a":1}}<|end_message|>

Each turn begins behind the header of its first message, which the prompt ends with. Muse's calls
are markup, whose types are what the tool's schema says; a message to anybody but `self` may hold
them. Inkling's are JSON.
"""  # noqa: E501

import re
from collections.abc import Sequence
from dataclasses import replace

from rollq.env import Action
from rollq.job import Json
from rollq_worker.strict_json import NotJson, skip, strict_json
from rollq_worker.toolcalls.formats.markup import QUOTED, Markup
from rollq_worker.toolcalls.pieces import Kind, Piece, Reader, first

_START, _MESSAGE = "<|start|>", "<|message|>"
_HEADER = re.compile(
    r"(?:<\|start\|>)?\s*+(?:assistant\b)?\s*+(?:to=(?P<to>[^\s<]++))?\s*+<\|message\|>"
)
_ENDS = ("<|eom|>", "<|eot|>", _START)
_ATEM = Markup(
    blocks=(("<atem:function_calls>", "</atem:function_calls>"),),
    function=('<atem:invoke name="', "</atem:invoke>"),
    parameter=('<atem:parameter name="', "</atem:parameter>"),
    name=QUOTED,
    form='Write <atem:invoke name="name"><atem:parameter '
    'name="key">value</atem:parameter></atem:invoke> between the'
    " function_calls tags.",
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
                f"{_MESSAGE} in front of it."
            )
            pieces.append(Piece(Kind.BROKEN, at, end, errors=(error,)))
        else:
            pieces.append(Piece(Kind.FRAME, at, header.end()))
            body = text[header.end() : end]
            if header["to"] == "self":
                pieces.append(Piece(Kind.REASONING, header.end(), end, inner=body))
            else:
                pieces += (
                    _moved(piece, header.end()) for piece in _ATEM.pieces(body, False, tools)
                )
        if close and close[0] != _START:
            pieces.append(Piece(Kind.FRAME, end, close.end()))
        at = max(pieces[-1].end, end)
    return [piece for piece in pieces if piece.end > piece.start]


def _moved(piece: Piece, by: int) -> Piece:
    return replace(piece, start=piece.start + by, end=piece.end + by)


_MODEL, _END = "<|message_model|>", "<|end_message|>"
_THINKING, _TEXT, _INVOKE = (
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
)
_FORM = f'Write name{_INVOKE}{{"name": "name", "args": {{...}}}}{_END}.'


def _inkling(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        inside = at + len(_MODEL) if text.startswith(_MODEL, at) else at
        kind = first(text, inside, _THINKING, _TEXT, _INVOKE, _END, _MODEL)
        body = kind.end() if kind and kind[0] in (_THINKING, _TEXT, _INVOKE) else inside
        close = first(text, body, _END, _MODEL)
        end = close.start() if close else len(text)
        after = close.end() if close and close[0] == _END else end
        head = text[inside : kind.start()].strip() if kind and body > inside else ""
        if kind is None or body == inside or (head and kind[0] != _INVOKE):
            error = (
                f"A message does not say what it is. Write {_TEXT}, {_THINKING} or "
                f"name{_INVOKE} in front of it."
            )
            pieces.append(Piece(Kind.BROKEN, at, max(after, at + 1), errors=(error,)))
        elif kind[0] == _INVOKE:
            pieces.append(_json_call(text, at, body, end, after))
        else:
            said = Piece(Kind.TEXT, body, end)
            if kind[0] == _THINKING:
                said = Piece(Kind.REASONING, body, end, inner=text[body:end])
            pieces += [Piece(Kind.FRAME, at, body), said, Piece(Kind.FRAME, end, after)]
        at = pieces[-1].end
    return [piece for piece in pieces if piece.end > piece.start]


def _json_call(text: str, start: int, body: int, end: int, after: int) -> Piece:
    """The call of the message from `start` to `after`, whose JSON stands from `body` to `end`."""
    call = _call_of(text[body:end]) if after > end else f"The tool call was not closed with {_END}."
    if isinstance(call, str):
        return Piece(Kind.BROKEN, start, after, errors=(call,))
    return Piece(Kind.CALL, start, after, calls=(call,))


def _call_of(written: str) -> Action | str:
    """The call, or what is wrong with it. `null` stands for no arguments."""
    try:
        value, problem, end = strict_json(written)
    except NotJson as e:
        return f"The tool call is {e} {_FORM}"
    if problem or skip(written, end) < len(written):
        return problem or f"There is text behind the JSON of the tool call. {_FORM}"
    name, arguments = (
        (value.get("name"), value.get("args")) if isinstance(value, dict) else (None, None)
    )
    if not isinstance(name, str) or not name:
        return f'The tool call has no "name". {_FORM}'
    if not isinstance(arguments, dict | None):
        return f'The "args" of the call of {name!r} are not a JSON object.'
    return Action(name, arguments or {})


MUSE = Reader(_muse)
INKLING = Reader(_inkling, (_THINKING, _END))
