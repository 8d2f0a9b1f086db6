"""Values that a format writes without quotes, under schemas of every kind: as their type or as an
error, never silently as a string.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rollq_worker.toolcalls import PARSERS
from tests.rollq_worker.toolcalls.written import WRITE

BARE = sorted(
    name for name, write in WRITE.items() if write("f", {"x": "5"}) == write("f", {"x": 5})
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["hi", "007", "true", "a b", "[1]"]),
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda value: not value.is_integer()
    ),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(st.integers(0, 9) | st.sampled_from(["a b", "c"]) | st.none(), max_size=3),
    "object": st.dictionaries(st.sampled_from("abc"), st.booleans() | st.floats(-2, 2), max_size=3),
}
NAMES = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "string": "str",
}


@dataclass
class Typed:
    """A schema, a value that fits it, and the JSON types that it allows."""

    schema: Any
    value: Any
    kinds: frozenset[str]


@st.composite
def typed_values(draw: st.DrawFn, defs: dict[str, Any], depth: int = 3) -> Typed:
    """A schema of any form. Those that it refers to go into `defs`."""
    kind = draw(st.sampled_from(sorted(VALUES)))
    value, only = draw(VALUES[kind]), frozenset({kind})
    forms = ["type", "types", "const", "enum", "name"]
    form = draw(st.sampled_from([*forms, "any", "all", "ref", "nullable"] if depth else forms))
    if form in ("any", "all", "ref", "nullable"):
        inner = draw(typed_values(defs, depth - 1))
        if form == "any":
            other = draw(typed_values(defs, depth - 1))
            options = draw(st.permutations([inner.schema, other.schema]))
            word = draw(st.sampled_from(["anyOf", "oneOf"]))
            return Typed(
                {word: options, "description": "d"}, inner.value, inner.kinds | other.kinds
            )
        if form == "all":
            return Typed({"allOf": [inner.schema], "default": None}, inner.value, inner.kinds)
        if form == "nullable":
            return Typed({**inner.schema, "nullable": True}, None, inner.kinds | {"null"})
        name = f"D{len(defs)}"
        defs[name] = inner.schema
        return Typed({"$ref": f"#/$defs/{name}"}, inner.value, inner.kinds)
    if form == "types":
        other_kind = draw(st.sampled_from(sorted(VALUES)))
        return Typed({"type": [kind, other_kind]}, value, only | {other_kind})
    if form == "name":
        return Typed({"type": NAMES.get(kind, kind)}, value, only)
    schema = (
        {"type": kind}
        if form == "type"
        else {"const": value}
        if form == "const"
        else {"enum": [value]}
    )
    return Typed(schema, value, only)


def tool(schema: Any, defs: dict[str, Any]) -> Any:
    function = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": schema}, "$defs": defs},
    }
    return {"type": "function", "function": function}


def test_these_formats_write_values_without_quotes():
    of_glm = ["glm45", "hunyuan3", "k2_horizon", "longcat"]
    of_minimax = ["dots", "minicpm5", "minimax_m2", "minimax_m3", "muse", "step3"]
    assert sorted([*of_glm, *of_minimax, "mimo_v2", "qwen3_coder", "seed"]) == BARE


@pytest.mark.parametrize("name", BARE)
@given(data=st.data())
def test_a_value_is_read_as_its_type(name: str, data: st.DataObject):
    defs: dict[str, Any] = {}
    typed = data.draw(typed_values(defs))
    assume(
        name != "minimax_m3"
        or typed.value not in ([], {})
        or not typed.kinds >= {"array", "object"}
    )  # both: no tags
    written = WRITE[name]("f", {"x": typed.value})
    read = PARSERS[name](written, False, [tool(typed.schema, defs)])
    assert not read.errors
    found = read.calls[0].arguments["x"]
    in_tags = name == "minimax_m3" and isinstance(typed.value, list | dict) and typed.value
    if "string" in typed.kinds and typed.value is not None and not in_tags:
        assert isinstance(found, str)  # text that may be a string is one
    else:
        assert found == typed.value and type(found) is type(typed.value)


@pytest.mark.parametrize("name", BARE)
@given(
    data=st.data(),
    text=st.sampled_from(["some words", "5", "1.5", "true", "null", "[1]", '{"a": 1}', "None", ""]),
)
def test_a_string_is_only_read_where_one_is_allowed(name: str, data: st.DataObject, text: str):
    defs: dict[str, Any] = {}
    typed = data.draw(typed_values(defs))
    read = PARSERS[name](WRITE[name]("f", {"x": text}), False, [tool(typed.schema, defs)])
    assert bool(read.calls) != bool(read.errors)
    if read.calls and isinstance(read.calls[0].arguments["x"], str):
        assert "string" in typed.kinds


TEXT: Any = {"type": "string"}
NULL: Any = {"type": "null"}
NULLABLE: Sequence[Any] = (
    {"anyOf": [TEXT, NULL]},
    {"type": ["string", "null"]},
    {"type": ["string", None]},
    {"type": ["str", "None"]},
    {**TEXT, "nullable": True},
    {"enum": ["a", None]},
    {},
    {"type": None, "description": "anything"},
)


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("text", ["null", "None", "none", "NULL", "nil", ""])
def test_null_is_null_where_the_schema_allows_it(name: str, text: str):
    def read(schema: Any) -> Any:
        return PARSERS[name](WRITE[name]("f", {"x": text}), False, [tool(schema, {})])

    is_null = text in ("null", "None")
    for schema in NULLABLE:
        assert read(schema).calls[0].arguments == {"x": None if is_null else text}
    assert read(TEXT).calls[0].arguments == {"x": text}
    assert read({"type": "integer"}).errors
    assert bool(read(NULL).calls) == is_null


@pytest.mark.parametrize("name", sorted(set(WRITE) - set(BARE)))
def test_null_for_arguments_stands_for_none(name: str):
    text = WRITE[name]("f", {"x": 1})
    nulls = {
        text.replace(written, "null") for written in ('{"x": 1}', "{'x': 1}") if written in text
    }
    for null in nulls:
        assert [call.arguments for call in PARSERS[name](null).calls] == [{}]


@pytest.mark.parametrize("name", BARE)
def test_parameters_are_found_wherever_the_schema_has_them(name: str):
    number = {"type": "integer"}
    for parameters in (
        {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"x": number}}}},
        {"allOf": [{"properties": {"y": {}}}, {"properties": {"x": number}}]},
        {"anyOf": [{"properties": {"x": number}}, {"properties": {"y": {}}}]},
        {"type": "object", "properties": {"y": {}}, "additionalProperties": number},
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        assert PARSERS[name](WRITE[name]("f", {"x": 5}), False, tools).calls[0].arguments == {
            "x": 5
        }
        assert PARSERS[name](WRITE[name]("f", {"x": "five"}), False, tools).errors
