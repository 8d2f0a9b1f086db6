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
from rollq_worker.toolcalls.pieces import Kind, Piece, block_reader, broken

_TAGS = ("<|tool_call>", "<tool_call|>")
_CALL = re.compile(r"\s*call:([^\s{}<>:]+)\s*\{")
_STRING = r'<\|"\|>([^<]*+(?:<(?!\|"\|>)[^<]*+)*)<\|"\|>'
_FORM = 'Write call:name{key:<|"|>text<|"|>,other:1} between the tool_call tokens.'
_NOTATION = Notation(
    string=re.compile(_STRING),
    key=re.compile(_STRING + r"|([^\s{}\[\]:,<>](?:[^{}\[\]:,<>\n]*[^\s{}\[\]:,<>])?)"),
    quotes=('<|"|>',),
    number=re.compile(r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![^\s{}\[\]:,<>])"),
    constants=CONSTANTS,
    close={"[": "]", "{": "}"},
    form=_FORM,
)


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    inside = start + len(_TAGS[0])
    name = _CALL.match(text, inside)
    if name is None:
        return [broken(text, start, inside, _TAGS, f"The tool call has no function name. {_FORM}")]
    cursor = Cursor(_NOTATION, text, name.end())
    try:
        arguments = cursor.fields(1)
    except Unreadable as e:
        return [broken(text, start, inside, _TAGS, str(e))]
    end = skip(text, cursor.at)
    if not text.startswith(_TAGS[1], end):
        tail = "has text behind its arguments."
        if end == len(text):
            tail = "was not closed with its end token."
        return [broken(text, start, inside, _TAGS, f"The call of {name[1]!r} {tail}")]
    return [Piece(Kind.CALL, start, end + len(_TAGS[1]), calls=(Action(name[1], arguments),))]


GEMMA4 = block_reader({_TAGS[0]: _block}, think=("<|channel>thought", "<channel|>"))
