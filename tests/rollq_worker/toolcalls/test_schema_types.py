"""Values that a format writes as bare text get the type that the tool's schema asks for, or are
malformed.
"""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.toolcalls.schema_types import parameters, typed
from tests.rollq_worker.json_values import JSON_VALUES

BOTH = frozenset({"array", "object"})
DEFS = {"Loop": {"$ref": "#/$defs/Loop"}}


def read(text: str, schema: Any, kind: str = "") -> tuple[Any, str]:
    function = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": schema}, "$defs": DEFS},
    }
    return parameters([{"type": "function", "function": function}], "f").read("x", text, kind)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5.0", {"type": "integer"}, 5),
        ("1e3", {"type": "integer"}, 1000),
        ("5", {"type": "INTEGER"}, 5),
        ('{"a": 1}', {"type": "STRING"}, '{"a": 1}'),
        ("[1]", {"type": {}}, [1]),
        ("1e3", {"type": "number"}, 1000.0),
        ("7", {"type": "number"}, 7),
        ("True", {"type": "boolean"}, True),
        ("(1, 2)", {"type": "array"}, [1, 2]),
        ("['it\\'s', \"it's\"]", {"type": "array"}, ["it's", "it's"]),
        (r"['\x41\u00e9\U0001f642\n\\']", {"type": "array"}, ["Aé🙂\n\\"]),
        (r"['\ud83d\ude42']", {"type": "array"}, ["🙂"]),
        ("[(1,), (), ((), 2)]", {"type": "array"}, [[1], [], [[], 2]]),
        (f"{['-'] * 9000}", {"type": "array"}, ["-"] * 9000),
        ("{}", {"properties": {}}, {}),
        ("[]", {"items": {}}, []),
        ("5", {"allOf": [{"type": ["string", "integer"]}, {"type": "number"}]}, 5),
        ('{"a": 1}', {"description": "anything"}, {"a": 1}),
        ("5", {}, "5"),
        ("[1]", True, [1]),
        ("[1]", {"$ref": "#/$defs/Loop"}, [1]),
        ("[1]", {"$ref": "#/$defs/Missing"}, [1]),
        ("[1]", {"$ref": "https://example.org/schema"}, [1]),
        ("[1]", {"$ref": 5}, [1]),
    ],
)
def test_text_gets_the_type_of_its_schema(text: str, schema: Any, value: Any) -> None:
    found, error = read(text, schema)
    assert error == "" and found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "schema", "kinds"),
    [
        ("five", {"type": "integer"}, "integer"),
        ("5.5", {"type": "integer"}, "integer"),
        ("\u0663", {"type": "integer"}, "integer"),  # a digit, and none of JSON
        ("1e999", {"type": "number"}, "integer or number"),
        (str(2**63), {"type": "integer"}, "integer"),
        ("1e22", {"type": "integer"}, "integer"),
        ("1", {"type": "boolean"}, "boolean"),
        ("None", {"type": "integer"}, "integer"),
        ("{'a': {1, 2}}", {"type": "object"}, "object"),
        ('{"a": NaN}', {"type": "object"}, "object"),
        ("[" * 200, {"type": "array"}, "array"),
        (r"['\ud83d']", {"type": "array"}, "array"),
        ("['a' 'b']", {"type": "array"}, "array"),
        ("['a', true]", {"type": "array"}, "array"),
        ("{1: 'a'}", {"type": "object"}, "object"),
        ("{'a': 1, 'a': 2}", {"type": "object"}, "object"),
        ("{'a': inf}", {"type": "object"}, "object"),
    ],
)
def test_text_that_fits_no_type_is_malformed(text: str, schema: Any, kinds: str) -> None:
    assert read(text, schema) == (None, f"must be of type {kinds}, not {text[:40]!r}.")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("integer", 5), ("string", "5"), ("", "5"), ("boolean", "5"), ("text", "5")],
)
def test_a_named_type_decides_where_the_schema_allows_it(kind: str, value: Any) -> None:
    assert read("5", {"type": ["integer", "string"]}, kind) == (value, "")


def test_an_unknown_parameter_stays_text() -> None:
    known = parameters([{"type": "function", "function": {"name": "f"}}], "f")
    assert known.read("x", "[1]") == ("[1]", "")
    assert parameters([], "g").read("x", "[1]") == ("[1]", "")


@given(JSON_VALUES.filter(lambda value: isinstance(value, list | dict)))
def test_what_python_prints_is_read_back(value: Any):
    assert typed(repr(value), BOTH) == value


PYTHON_PARTS = st.sampled_from([*"()[]{},:'\"\\ 1-.e", "True", "None", "'a'", "\\x41", "#", "x"])


@given(st.lists(PYTHON_PARTS, max_size=12).map("".join))
def test_what_is_read_as_python_means_the_same_in_python(word: str):
    value = typed(word, BOTH)
    if value != word and json.dumps(value) != word:
        said = ast.literal_eval(word)
        assert json.loads(json.dumps(said)) == value
