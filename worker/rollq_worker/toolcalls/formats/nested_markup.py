"""MiniMax-M3's format: markup whose every tag begins with a token of its own, and whose values may
be nested.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="f">
    ]<]minimax[>[<a>1]<]minimax[>[</a>
    ]<]minimax[>[<l>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[</l>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

A parameter's tag is its name. Fields of an object are tags in its own, items of a list are tags
named `item`. The type of a text is what the tool's schema says; where it says nothing, JSON's words
and numbers are read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollq.env import Action
from rollq.job import Json
from rollq_worker.strict_json import MAX_DEPTH, TOO_DEEP, skip
from rollq_worker.toolcalls.pieces import Kind, Piece, block_reader, broken
from rollq_worker.toolcalls.schema_types import Parameters, parameters, typed

_MARK = "]<]minimax[>["
_BLOCK = (f"{_MARK}<tool_call>", f"{_MARK}</tool_call>")
_INVOKE = re.compile(re.escape(_MARK) + r'<invoke name="([^"<\n]+)">')
_END = f"{_MARK}</invoke>"
_TAG = re.compile(re.escape(_MARK) + r"<(/?)([^<>\n]+)>")
_ITEM = "item"
_SCALARS = frozenset({"boolean", "null", "number"})
_FORM = (
    f'Write {_MARK}<invoke name="name">{_MARK}<key>value{_MARK}</key>{_MARK}</invoke> between '
    "the tool_call tags."
)


class _Wrong(ValueError):
    """What is wrong with a call."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


@dataclass(slots=True)
class _Node:
    """What stands in a tag: a text, or other tags."""

    text: str = ""
    children: list[tuple[str, "_Node"]] = field(default_factory=list)


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    calls: list[Action] = []
    at = skip(text, start + len(_BLOCK[0]))
    try:
        while found := _INVOKE.match(text, at):
            call, at = _call(text, found, tools)
            calls.append(call)
            at = skip(text, at)
        if not calls:
            raise _Wrong(f"The tool call holds no function. {_FORM}", at)
        if not text.startswith(_BLOCK[1], at):
            more = (
                "was not closed with its end tag."
                if at == len(text)
                else f"holds more than functions. {_FORM}"
            )
            raise _Wrong(f"The tool call {more}", at)
    except _Wrong as e:
        return [broken(text, start, e.at, _BLOCK, str(e))]
    return [Piece(Kind.CALL, start, at + len(_BLOCK[1]), calls=tuple(calls))]


def _call(text: str, found: re.Match[str], tools: Sequence[Json]) -> tuple[Action, int]:
    """The call that this tag opens, and where it ends. Raises _Wrong."""
    name, known, arguments = found[1], parameters(tools, found[1]), dict[str, Json]()
    at = skip(text, found.end())
    while not text.startswith(_END, at):
        tag = _TAG.match(text, at)
        if tag is None or tag[1]:
            cut = "is cut off" if at == len(text) else "holds more than parameters"
            raise _Wrong(f"The call of {name!r} {cut}. {_FORM}", at)
        node, end = _node(text, tag, 1)
        if tag[2] in arguments:
            raise _Wrong(f"The tool call names the parameter {tag[2]!r} twice.", end)
        arguments[tag[2]], error = _value(node, tag[2], known, top=True)
        if error:
            raise _Wrong(f"The parameter {tag[2]!r} of the call of {name!r} {error}", end)
        at = skip(text, end)
    return Action(name, arguments), at + len(_END)


def _node(text: str, opened: re.Match[str], depth: int) -> tuple[_Node, int]:
    """What stands in the tag `opened`, and where its end tag ends. Raises _Wrong."""
    node, key, at = _Node(), opened[2], opened.end()
    if depth > MAX_DEPTH:
        raise _Wrong(TOO_DEEP, at)
    while True:
        tag = _TAG.search(text, at)
        if tag is None or (
            tag[2] != key if tag[1] else tag[2] == "tool_call" or tag[2].startswith("invoke name=")
        ):
            raise _Wrong(f"{key!r} was not closed with {_MARK}</{key}>.", at)
        node.text += text[at : tag.start()]
        if tag[1]:
            if node.children and node.text.strip():
                raise _Wrong(f"{key!r} holds text beside its tags. {_FORM}", at)
            return node, tag.end()
        child, at = _node(text, tag, depth + 1)
        node.children.append((tag[2], child))


def _value(node: _Node, key: str, known: Parameters, top: bool = False) -> tuple[Json, str]:
    """The value of the property `key`, and what is wrong with it ("": nothing). `top`: it is a
    parameter.
    """
    if node.children:
        return _nested(node, key, known)
    kinds = known.kinds(key)
    if not (top or kinds):
        return typed(node.text, _SCALARS), ""
    value, error = known.read(key, node.text)
    if error and not node.text.strip():  # an empty list or object has no tags
        for empty in ("[]", "{}"):
            value, problem = known.read(key, empty)
            if not problem:
                return value, ""
    return value, error


def _nested(node: _Node, key: str, known: Parameters) -> tuple[Json, str]:
    kinds = known.kinds(key) or frozenset({"array", "object"})
    is_list = "array" in kinds and all(name == _ITEM for name, _ in node.children)
    if ("array" if is_list else "object") not in kinds:
        return (
            None,
            f"must be of type {' or '.join(sorted(kinds))}, not "
            f"{'a list' if is_list else 'an object'}.",
        )
    inside = known.items(key, _ITEM) if is_list else known.fields(key)
    read = [(name, *_value(child, name, inside)) for name, child in node.children]
    if error := next((f"holds {name!r}, which {error}" for name, _, error in read if error), ""):
        return None, error
    if is_list:
        return [value for _, value, _ in read], ""
    fields = {name: value for name, value, _ in read}
    return fields, "" if len(fields) == len(read) else "names a field twice."


MINIMAX_M3 = block_reader({_BLOCK[0]: _block})
