"""Every format of calls: what is read, what is refused in words, and that no text is lost."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.protocols import Action
from rollq_worker.toolcalls import PARSERS
from rollq_worker.toolcalls.arguments import typed
from tests.rollq_worker.toolcalls.turns import TOOLS, TURNS, C, D, E, G, H, K, L, M, Turn, dsml

NAMES = sorted(PARSERS)


def thinking(turn: Turn) -> bool | None:
    return None if "</think>" in turn.text else False


@pytest.mark.parametrize("turn", TURNS, ids=[turn.id for turn in TURNS])
def test_turns(turn: Turn):
    read = PARSERS[turn.format](turn.text, thinking(turn), TOOLS)
    assert list(read.calls) == turn.calls
    assert read.reasoning == turn.reasoning
    assert turn.error in " ".join(read.errors) and bool(turn.error) == bool(read.errors)
    assert len(read.call_spans) == len(read.calls) and len(read.error_spans) == len(read.errors)
    if turn.content or turn.calls or not turn.error:
        assert read.content == turn.content
    else:  # a broken call is kept as it is
        assert read.content and read.content in turn.text
    for error in read.errors:
        assert error.endswith(".") and len(error) < 300


def test_seed_has_tags_of_its_own():
    text = "<seed:think>hm</seed:think>" + C.replace("tool_call", "seed:tool_call").replace(">\nhi\n<", ">hi<")
    read = PARSERS["seed"](text, False, TOOLS)
    assert (list(read.calls), read.reasoning, read.content) == ([Action("f", {"s": "hi"})], "hm", "")
    assert PARSERS["seed"](C, False, TOOLS).errors  # the block's tags are another model's


def test_spans_are_where_the_calls_are():
    for name, call in {"hermes": '<tool_call>{"name": "f"}</tool_call>', "qwen3_coder": C, "glm45": G}.items():
        text = f"One. {call} Two. {call}{call[:-3]}"
        read = PARSERS[name](text, False, TOOLS)
        assert [text[start:end] for start, end in read.call_spans] == [call, call]
        (start, end), *_ = read.error_spans
        assert text[start:end] == call[:-3]


def test_ids_that_the_model_gave():
    assert PARSERS["kimi_k2"](K, False, TOOLS).call_ids == ("functions.f:0",)
    text = '[TOOL_CALLS] [{"name": "f", "id": "abc123def"}, {"name": "g"}]'
    assert PARSERS["mistral"](text, False, TOOLS).call_ids == ("abc123def", "")
    assert PARSERS["mistral"]("[TOOL_CALLS]f[CALL_ID]x[ARGS]{}", False, TOOLS).call_ids == ("x",)
    assert PARSERS["qwen3_coder"](C, False, TOOLS).call_ids == ()


PARTS = [
    *[C, D, E, G, H, K, L, M, "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=s>", "f"],
    *["</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>", "<|call|>"],
    *["<｜DSML｜function_calls>", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="f">', "</｜DSML｜invoke>"],
    *[
        '<｜DSML｜parameter name="s" string="true">',
        '<｜DSML｜parameter name="n" string="false">',
        "</｜DSML｜parameter>",
    ],
    *["<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="f">', "</invoke>", '<parameter name="s">'],
    *[
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[THINK]",
        "[/THINK]",
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
    ],
    *[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
    ],
    *["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "functions.f:0"],
    *[
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|channel|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "final",
    ],
    *[
        "analysis",
        "to=functions.f",
        "<|tool_call>",
        "<tool_call|>",
        "call:f{",
        '<|"|>',
        "<|channel>thought",
        "<channel|>",
    ],
    *["\n", " ", "1", "1e999", "null", "\ufffd", "NaN", "<seed:tool_call>", "</seed:tool_call>", "```json", "`", "'"],
]
SOUP = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=4)), max_size=20).map("".join)


@pytest.mark.parametrize("name", NAMES)
@given(text=SOUP, inside=st.sampled_from([False, True, None]))
def test_any_turn_is_read_and_no_text_is_lost(name: str, text: str, inside: bool | None):
    read = PARSERS[name](text, inside, TOOLS)
    assert len(read.call_spans) == len(read.calls) and len(read.error_spans) == len(read.errors)
    for start, end in (*read.call_spans, *read.error_spans):
        assert 0 <= start <= end <= len(text)
    for call in read.calls:
        assert call.name
        json.dumps(dict(call.arguments), allow_nan=False).encode()
    # Whatever is in no call and no reasoning, and is no control token, is content.
    kept = read.content + read.reasoning + "".join(text[start:end] for start, end in read.call_spans)
    for word in ("`", "'", "\ufffd"):
        assert kept.count(word) >= text.count(word)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<>|[]{}\"'\\\r\n\t "), min_size=1, max_size=12)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "s": TEXTS,
        "n": st.integers(-(2**63), 2**63 - 1),
        "x": st.floats(allow_nan=False, allow_infinity=False, width=32).filter(lambda x: x != int(x)),
        "b": st.booleans(),
        "o": st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(0, 9), st.none()), max_size=3),
        "l": st.lists(st.one_of(TEXTS, st.booleans()), max_size=3),
    },
)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
).filter(lambda value: isinstance(value, list | dict))


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call of `f` in a format."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    as_json = json.dumps(arguments, ensure_ascii=False)
    if name in ("qwen3_coder", "seed"):
        inside = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        tag = "tool_call" if name == "qwen3_coder" else "seed:tool_call"
        return f"<{tag}>\n<function=f>\n{inside}</function>\n</{tag}>"
    if name == "glm45":
        inside = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in texts.items())
        return f"<tool_call>f\n{inside}</tool_call>"
    if name == "minimax_m2":
        inside = "".join(f'<parameter name="{key}">{text}</parameter>\n' for key, text in texts.items())
        return f'<minimax:tool_call>\n<invoke name="f">\n{inside}</invoke>\n</minimax:tool_call>'
    if name == "deepseek_v32":
        kinds = {key: json.dumps(isinstance(value, str)) for key, value in arguments.items()}
        return dsml(
            *(f'<DSML:parameter name="{key}" string="{kinds[key]}">{texts[key]}</DSML:parameter>' for key in texts)
        )
    if name == "gemma4":
        return f"<|tool_call>call:f{gemma(arguments)}<tool_call|>"
    return {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {as_json}}}\n</tool_call>',
        "llama3": f'{{"name": "f", "parameters": {as_json}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{as_json}",
        "deepseek_v31": D.replace('{"s": "hi"}', as_json),
        "kimi_k2": K.replace('{"s": "hi"}', as_json),
        "gpt_oss": H.replace('{"s": "hi"}', as_json),
    }[name]


def gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f'<|"|>{key}<|"|>:{gemma(item)}' for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return json.dumps(value)


@pytest.mark.parametrize("name", NAMES)
@given(arguments=VALUES)
def test_every_well_formed_call_is_read_as_it_is(name: str, arguments: dict[str, Any]):
    read = PARSERS[name](written(name, arguments), False, TOOLS)
    assert list(read.calls) == [Action("f", arguments)] and not read.errors and not read.content


@pytest.mark.parametrize("name", NAMES)
@given(arguments=VALUES, at=st.integers(1, 400))
def test_a_call_cut_anywhere_is_never_another_call(name: str, arguments: dict[str, Any], at: int):
    """At the token limit: a part of a call is an error, text, or the whole call but for its end."""
    whole = written(name, arguments)
    read = PARSERS[name](whole[: at % len(whole)], False, TOOLS)
    assert list(read.calls) in ([], [Action("f", arguments)])


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "integer"}, 5),
        ("5", {"type": "string"}, "5"),
        ("5", None, "5"),
        ("5", {}, "5"),
        ("5", {"type": ["integer", "null"]}, 5),
        ("null", {"type": ["integer", "null"]}, None),
        ("5.0", {"type": "integer"}, "5.0"),
        ("5", {"type": "number"}, 5),
        ("1e3", {"type": "number"}, 1000.0),
        ("1e999", {"type": "number"}, "1e999"),
        ("9" * 30, {"type": "integer"}, "9" * 30),
        ("9" * 30, {"type": "number"}, "9" * 30),
        ("True", {"type": "boolean"}, True),
        ("1", {"type": "boolean"}, "1"),
        ("true", {"type": "integer"}, "true"),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("[1, 2]", {"type": "object"}, "[1, 2]"),
        ("(1, 2)", {"type": "array"}, [1, 2]),
        ("{'a': {1, 2}}", {"type": "object"}, "{'a': {1, 2}}"),
        ('{"a": NaN}', {"type": "object"}, '{"a": NaN}'),
        ("[" * 200, {"type": "array"}, "[" * 200),
        ("['it\\'s', \"it's\"]", {"type": "array"}, ["it's", "it's"]),
        (r"['\x41\u00e9\U0001f642\n\\']", {"type": "array"}, ["Aé🙂\n\\"]),
        (r"['\ud83d\ude42']", {"type": "array"}, r"['\ud83d\ude42']"),
        ("[(1,), (), ((), 2)]", {"type": "array"}, [[1], [], [[], 2]]),
        ("[(1), 'a']", {"type": "array"}, "[(1), 'a']"),
        ("(1, 2]", {"type": "array"}, "(1, 2]"),
        ("('a',,)", {"type": "array"}, "('a',,)"),
        ("(,)", {"type": "array"}, "(,)"),
        ("['a' 'b']", {"type": "array"}, "['a' 'b']"),
        ("['a', true]", {"type": "array"}, "['a', true]"),
        ("{1: 'a'}", {"type": "object"}, "{1: 'a'}"),
        ("{'a': 1, 'a': 2}", {"type": "object"}, "{'a': 1, 'a': 2}"),
        ("{'a': inf}", {"type": "object"}, "{'a': inf}"),
        ("{'a': 'b}", {"type": "object"}, "{'a': 'b}"),
        (f"{['-'] * 9000}", {"type": "array"}, ["-"] * 9000),
        ("x", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x"),
        ("3", {"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, 3),
        ("2", {"enum": [1, 2, 3]}, 2),
        ("a", {"enum": ["a", "b"]}, "a"),
        ("{}", {"properties": {}}, {}),
        ("[]", {"items": {}}, []),
        (" 7 ", {"type": "integer"}, 7),
    ],
)
def test_types_of_values(text: str, schema: Any, value: Any):
    found = typed(text, schema)
    assert found == value and type(found) is type(value)


@given(JSON)
def test_what_python_prints_is_read(value: Any):
    assert typed(repr(value), {"type": ["array", "object"]}) == value


@given(
    st.lists(st.sampled_from([*"()[]{},:'\"\\ 1-.e", "True", "None", "'a'", "\\x41", "#", "x"]), max_size=12).map(
        "".join
    )
)
def test_what_is_read_as_python_says_just_that(word: str):
    value = typed(word, {"type": ["array", "object"]})
    if value != word and json.dumps(value) != word:
        said = ast.literal_eval(word)
        assert json.loads(json.dumps(said)) == value
