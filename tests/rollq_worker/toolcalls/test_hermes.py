"""Every way in which a policy can spoil a tool call in Hermes' format."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.env import Action
from rollq_worker.text.strict_json import MAX_DEPTH
from rollq_worker.toolcalls import PARSERS
from tests.rollq_worker.json_values import JSON_VALUES

GOOD = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = Action("f", {"a": 1})


def block(inside: str) -> str:
    return f"<tool_call>\n{inside}\n</tool_call>"


READ: list[tuple[str, str, str, list[Action], str]] = [
    # name, turn, content, calls, reasoning
    ("nothing", "", "", [], ""),
    ("text around and between", f"a {GOOD} b {GOOD} c", "a  b  c", [F, F], ""),
    (
        "a list of calls",
        block(f"[{json.dumps({'name': 'f', 'arguments': {'a': 1}})}]"),
        "",
        [F],
        "",
    ),
    ("keys of no meaning", block('{"name": "f", "id": 3, "arguments": {"a": 1}}'), "", [F], ""),
    (
        "an end tag in a string",
        block('{"name": "f", "arguments": {"s": "x</tool_call>y"}}'),
        "",
        [Action("f", {"s": "x</tool_call>y"})],
        "",
    ),
    (
        "a start tag in a string",
        block('{"name": "f", "arguments": {"s": "<tool_call>{"}}'),
        "",
        [Action("f", {"s": "<tool_call>{"})],
        "",
    ),
    (
        "quoted tags in prose",
        "Write `<tool_call>` and `</tool_call>`.",
        "Write `<tool_call>` and `</tool_call>`.",
        [],
        "",
    ),
    ("quoted tag, then a call", f"Not '<tool_call>' but {GOOD}", "Not '<tool_call>' but", [F], ""),
    ("a stray end tag", "Hi</tool_call>", "Hi</tool_call>", [], ""),
    ("reasoning", "<think>\nwell\n</think>\n\nHi", "Hi", [], "well"),
    ("a call only thought of", f"<think>{GOOD}</think>Hi", "Hi", [], GOOD),
    ("empty reasoning", "<think>\n\n</think>\n\nHi", "Hi", [], ""),
    ("reasoning twice", "<think>a</think>x<think>b</think>y", "xy", [], "a\n\nb"),
    ("a stray end of reasoning", "Hi</think>", "Hi</think>", [], ""),
    ("other control tokens", "<|im_start|>user\nHi", "<|im_start|>user\nHi", [], ""),
]

BROKEN: list[tuple[str, str, str]] = [
    # name, turn, what the policy is told
    ("bad JSON", block("{'name': 'f'}"), "not valid JSON: Expecting property name"),
    (
        "a raw line break in a string",
        block('{"name": "f", "arguments": {"s": "a\nb"}}'),
        "Invalid control character",
    ),
    ("an empty block", block(""), "not valid JSON"),
    ("two objects in a block", block('{"name": "f"}\n{"name": "g"}'), "text behind the JSON"),
    ("half a call", '<tool_call>\n{"name": "f", "argu', "cut off"),
    ("no name", block('{"arguments": {"a": 1}}'), 'has no "name"'),
    ("an empty name", block('{"name": "", "arguments": {}}'), 'has no "name"'),
    ("a name that is no string", block('{"name": 3, "arguments": {}}'), 'has no "name"'),
    ("arguments that are a list", block('{"name": "f", "arguments": [1]}'), "not a JSON object"),
    (
        "arguments in a broken string",
        block('{"name": "f", "arguments": "{a: 1}"}'),
        "a string that holds no JSON object",
    ),
    ("NaN in a string", block(r'{"name": "f", "arguments": "{\"a\": NaN}"}'), "NaN"),
    ("a scalar", block("3"), "not a JSON object"),
    ("an empty list", block("[]"), "is empty"),
    ("a list with a scalar", block('[{"name": "f"}, 3]'), "not a JSON object"),
    ("NaN", block('{"name": "f", "arguments": {"a": NaN}}'), "NaN"),
    ("Infinity", block('{"name": "f", "arguments": {"a": -Infinity}}'), "-Infinity"),
    ("a float beyond range", block('{"name": "f", "arguments": {"a": 1e999}}'), "too large"),
    (
        "an integer beyond 64 bits",
        block('{"name": "f", "arguments": {"a": 99999999999999999999}}'),
        "64 bits",
    ),
    (
        "an integer of 5000 digits",
        block('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}"),
        "64 bits",
    ),
    ("a key twice", block('{"name": "f", "arguments": {"a": 1, "a": 2}}'), "the key 'a' twice"),
    ("half a surrogate pair", block(r'{"name": "f", "arguments": {"s": "\ud83d"}}'), "surrogate"),
    (
        "deep",
        block('{"name": "f", "arguments": ' + '{"a":' * 90 + "1" + "}" * 91),
        "nested 91 levels deep",
    ),
    (
        "deeper than Python",
        block('{"name": "f", "arguments": ' + "[" * 100_000),
        f"deeper than {MAX_DEPTH}",
    ),
    ("reasoning that never ends", "<think>well, maybe", "reasoning was not closed"),
]


@pytest.mark.parametrize(
    ("turn", "content", "calls", "reasoning"),
    [row[1:] for row in READ],
    ids=[row[0] for row in READ],
)
def test_a_turn_is_read(turn: str, content: str, calls: list[Action], reasoning: str):
    read = PARSERS["hermes"](turn)
    assert (read.content, list(read.calls), read.reasoning, list(read.errors)) == (
        content,
        calls,
        reasoning,
        [],
    )


@pytest.mark.parametrize(
    ("turn", "says"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_a_broken_call_is_reported_and_its_text_is_kept(turn: str, says: str):
    read = PARSERS["hermes"](turn)
    assert read.calls == () and len(read.errors) == 1
    assert says in read.errors[0]
    assert len(read.errors[0]) < 240 and read.errors[0].endswith(".")
    assert turn.strip() in (read.content, "<think>" + read.reasoning)


@pytest.mark.parametrize(
    "bad",
    [
        row[1]
        for row in BROKEN
        if row[0] in ("bad JSON", "no name", "NaN", "a scalar", "half a call")
    ],
)
def test_a_broken_call_does_not_spoil_its_neighbours(bad: str):
    read = PARSERS["hermes"](f"{GOOD} {bad} {GOOD}")
    assert list(read.calls) == [F, F] and len(read.errors) == 1
    assert read.content == bad.strip()


def test_a_turn_that_starts_inside_reasoning():
    read = PARSERS["hermes"](f"well\n</think>\n\n{GOOD}", thinking=True)
    assert (read.reasoning, list(read.calls), read.content) == ("well", [F], "")
    assert PARSERS["hermes"]("well", thinking=True).errors


@given(
    st.text(min_size=1),
    st.dictionaries(st.text(), JSON_VALUES, max_size=3),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.sampled_from(["", "\n", " \n\t"]),
)
def test_every_spelling_of_a_call_is_read(
    name: str, arguments: dict[str, Any], ascii: bool, indent: int | None, space: str
):
    inside = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii, indent=indent)
    read = PARSERS["hermes"](f"<tool_call>{space}{inside}{space}</tool_call>")
    assert list(read.calls) == [Action(name, arguments)] and not read.errors and not read.content
