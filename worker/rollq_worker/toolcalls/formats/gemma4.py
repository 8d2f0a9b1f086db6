"""Gemma 4's format: calls in a notation of their own, with strings between quote tokens.

    <|tool_call>call:f{a:1,b:<|"|>text<|"|>,c:[true,{d:null}]}<tool_call|>

Reasoning is `<|channel>thought ... <channel|>`.
"""

import re
from collections.abc import Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import CONSTANTS, skip
from rollq_worker.toolcalls.literals import Cursor, Notation, Unreadable
from rollq_worker.toolcalls.pieces import BrokenCall, block_reader, call_block

_OPEN = "<|tool_call>"
_CLOSE = "<tool_call|>"
_CALL = re.compile(r"\s*call:([^\s{}<>:]+)\s*\{")
_STRING = r'<\|"\|>([^<]*+(?:<(?!\|"\|>)[^<]*+)*)<\|"\|>'
_FORM = 'Write call:name{key:<|"|>text<|"|>,other:1} between the tool_call tokens.'
_NOTATION = Notation(
    string=re.compile(_STRING),
    key=re.compile(_STRING + r"|([^\s{}\[\]:,<>](?:[^{}\[\]:,<>\n]*[^\s{}\[\]:,<>])?)"),
    quotes=('<|"|>',),
    number=re.compile(r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![^\s{}\[\]:,<>])"),
    constants=CONSTANTS,
    closing={"[": "]", "{": "}"},
    form=_FORM,
)


def _call(text: str, at: int, tools: Sequence[Json]) -> tuple[Sequence[Action], int]:
    name = _CALL.match(text, at)
    if name is None:
        raise BrokenCall(f"The tool call has no function name. {_FORM}", at)
    cursor = Cursor(_NOTATION, text, name.end())
    try:
        arguments = cursor.fields(1)
    except Unreadable as e:
        raise BrokenCall(str(e), at) from None
    end = skip(text, cursor.at)
    if text.startswith(_CLOSE, end):
        return [Action(name[1], arguments)], end + len(_CLOSE)
    if end == len(text):
        raise BrokenCall(f"The call of {name[1][:80]!r} was not closed with its end token.", at)
    raise BrokenCall(f"The call of {name[1][:80]!r} has text behind its arguments.", at)


READERS = {
    "gemma4": block_reader(
        {_OPEN: call_block((_OPEN, _CLOSE), _call)}, think=("<|channel>thought", "<channel|>")
    ),
}
