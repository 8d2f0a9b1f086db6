"""MiniMax-M3's format: markup whose every tag begins with a token of its own, and whose values may
be nested.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="f">
    ]<]minimax[>[<a>1]<]minimax[>[</a>
    ]<]minimax[>[<l>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[</l>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

A parameter's tag is its name. Fields of an object are tags inside its tag, items of a list are tags
named `item`. The tool's schema gives a text its type. Without one, JSON's words and numbers are
read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import MAX_DEPTH, TOO_DEEP, skip
from rollq_worker.toolcalls.pieces import BrokenCall, block_reader, call_block
from rollq_worker.toolcalls.schema_types import Parameters, parameters, typed

_MARK = "]<]minimax[>["
_OPEN = f"{_MARK}<tool_call>"
_CLOSE = f"{_MARK}</tool_call>"
_INVOKE = re.compile(re.escape(_MARK) + r'<invoke name="([^"<\n]+)">')
_END = f"{_MARK}</invoke>"
_TAG = re.compile(re.escape(_MARK) + r"<(/?)([^<>\n]+)>")
_ITEM = "item"
_SCALARS = frozenset({"boolean", "null", "number"})
_FORM = (
    f'Write {_MARK}<invoke name="name">{_MARK}<key>value{_MARK}</key>{_MARK}</invoke> between '
    "the tool_call tags."
)
_HOLDS = "holds "
"""Beginning of an error of a nested field."""


@dataclass(slots=True)
class _Node:
    """The content of a tag: a text, or other tags."""

    text: str = ""
    children: list[tuple[str, "_Node"]] = field(default_factory=list)


def _calls(text: str, at: int, tools: Sequence[Json]) -> tuple[Sequence[Action], int]:
    """Reads the calls of a block."""
    calls: list[Action] = []
    at = skip(text, at)
    while invoke := _INVOKE.match(text, at):
        call, at = _call(text, invoke, tools)
        calls.append(call)
        at = skip(text, at)
    if not calls:
        raise BrokenCall(f"The tool call holds no function. {_FORM}", at)
    if at == len(text):
        raise BrokenCall("The tool call was not closed with its end tag.", at)
    if not text.startswith(_CLOSE, at):
        raise BrokenCall(f"The tool call holds more than functions. {_FORM}", at)
    return calls, at + len(_CLOSE)


def _call(text: str, invoke: re.Match[str], tools: Sequence[Json]) -> tuple[Action, int]:
    """Reads the call that this tag opens. Returns it and its end. Raises BrokenCall."""
    name = invoke[1]
    schema = parameters(tools, name)
    arguments: dict[str, Json] = {}
    at = skip(text, invoke.end())
    while not text.startswith(_END, at):
        tag = _TAG.match(text, at)
        if tag is None or tag[1]:
            problem = "is cut off" if at == len(text) else "holds more than parameters"
            raise BrokenCall(f"The call of {name[:80]!r} {problem}. {_FORM}", at)
        node, end = _node(text, tag, 1)
        if tag[2] in arguments:
            raise BrokenCall(f"The tool call names the parameter {tag[2][:80]!r} twice.", end)
        arguments[tag[2]], error = _value(node, tag[2], schema, is_parameter=True)
        if error:
            raise BrokenCall(
                f"The parameter {tag[2][:80]!r} of the call of {name[:80]!r} {error}", end
            )
        at = skip(text, end)
    return Action(name, arguments), at + len(_END)


def _node(text: str, opener: re.Match[str], depth: int) -> tuple[_Node, int]:
    """Reads the content of a tag. Returns it and the place behind its end tag.

    Raises BrokenCall.
    """
    node = _Node()
    key = opener[2]
    at = opener.end()
    if depth > MAX_DEPTH:
        raise BrokenCall(TOO_DEEP, at)
    while True:
        tag = _TAG.search(text, at)
        if tag is None or not _may_follow(tag, key):
            raise BrokenCall(f"{key[:80]!r} was not closed with {_MARK}</{key:.80}>.", at)
        node.text += text[at : tag.start()]
        is_end_tag = bool(tag[1])
        if is_end_tag:
            if node.children and node.text.strip():
                raise BrokenCall(f"{key[:80]!r} holds text beside its tags. {_FORM}", at)
            return node, tag.end()
        child, at = _node(text, tag, depth + 1)
        node.children.append((tag[2], child))


def _may_follow(tag: re.Match[str], key: str) -> bool:
    """True if the tag may stand inside the tag `key`: its end tag, or the tag of a field."""
    is_end_tag = bool(tag[1])
    name = tag[2]
    if is_end_tag:
        return name == key
    return name != "tool_call" and not name.startswith("invoke name=")


def _value(
    node: _Node, key: str, schema: Parameters, is_parameter: bool = False
) -> tuple[Json, str]:
    """The value of the property `key`, and a sentence about what is wrong with it or ""."""
    if node.children:
        return _nested(node, key, schema)
    kinds = schema.kinds(key)
    if not is_parameter and not kinds:
        return typed(node.text, _SCALARS), ""
    value, error = schema.read(key, node.text)
    if error and not node.text.strip():  # an empty list or object has no tags
        for empty in ("[]", "{}"):
            value, problem = schema.read(key, empty)
            if not problem:
                return value, ""
    return value, error


def _nested(node: _Node, key: str, schema: Parameters) -> tuple[Json, str]:
    kinds = schema.kinds(key) or frozenset({"array", "object"})
    wanted = " or ".join(sorted(kinds))
    is_list = "array" in kinds and all(name == _ITEM for name, _ in node.children)
    if is_list:
        values, error = _children(node, schema.items(key, _ITEM))
        return [value for _, value in values], error
    if "object" not in kinds:
        return None, f"must be of type {wanted}, not an object."
    values, error = _children(node, schema.fields(key))
    fields = dict(values)
    if not error and len(fields) < len(values):
        error = "names a field twice."
    return fields, error


def _children(node: _Node, schema: Parameters) -> tuple[list[tuple[str, Json]], str]:
    """Names and values of the tags in `node`, and the first thing wrong with one or ""."""
    values = []
    for name, child in node.children:
        value, error = _value(child, name, schema)
        if error and not error.startswith(_HOLDS):
            error = f"{_HOLDS}{name[:80]!r}, which {error}"
        if error:
            return [], error  # of nested fields, only the innermost is named
        values.append((name, value))
    return values, ""


READERS = {
    "minimax_m3": block_reader(
        {_OPEN: call_block((_OPEN, _CLOSE), _calls)}, think=("<mm:think>", "</mm:think>")
    ),
}
