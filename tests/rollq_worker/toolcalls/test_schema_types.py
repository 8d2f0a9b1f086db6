"""Values that a format writes as bare text get the type that the tool's schema asks for, or stay text."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.toolcalls.schema_types import typed

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
).filter(lambda value: isinstance(value, list | dict))


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "integer"}, 5),
        ("5", {"type": "string"}, "5"),
        ("5", None, "5"),
        ("5", {"type": ["integer", "null"]}, 5),
        ("null", {"type": ["integer", "null"]}, None),
        ("5.0", {"type": "integer"}, "5.0"),
        ("1e3", {"type": "number"}, 1000.0),
        ("1e999", {"type": "number"}, "1e999"),
        ("9" * 30, {"type": "integer"}, "9" * 30),
        ("True", {"type": "boolean"}, True),
        ("1", {"type": "boolean"}, "1"),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("(1, 2)", {"type": "array"}, [1, 2]),
        ("{'a': {1, 2}}", {"type": "object"}, "{'a': {1, 2}}"),
        ('{"a": NaN}', {"type": "object"}, '{"a": NaN}'),
        ("[" * 200, {"type": "array"}, "[" * 200),
        ("['it\\'s', \"it's\"]", {"type": "array"}, ["it's", "it's"]),
        (r"['\x41\u00e9\U0001f642\n\\']", {"type": "array"}, ["Aé🙂\n\\"]),
        (r"['\ud83d\ude42']", {"type": "array"}, r"['\ud83d\ude42']"),
        ("[(1,), (), ((), 2)]", {"type": "array"}, [[1], [], [[], 2]]),
        ("['a' 'b']", {"type": "array"}, "['a' 'b']"),
        ("['a', true]", {"type": "array"}, "['a', true]"),
        ("{1: 'a'}", {"type": "object"}, "{1: 'a'}"),
        ("{'a': 1, 'a': 2}", {"type": "object"}, "{'a': 1, 'a': 2}"),
        ("{'a': inf}", {"type": "object"}, "{'a': inf}"),
        (f"{['-'] * 9000}", {"type": "array"}, ["-"] * 9000),
        ("x", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x"),
        ("3", {"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, 3),
        ("2", {"enum": [1, 2, 3]}, 2),
        ("{}", {"properties": {}}, {}),
        ("[]", {"items": {}}, []),
    ],
)
def test_text_gets_the_type_of_its_schema(text: str, schema: Any, value: Any):
    found = typed(text, schema)
    assert found == value and type(found) is type(value)


@given(JSON)
def test_what_python_prints_is_read_back(value: Any):
    assert typed(repr(value), {"type": ["array", "object"]}) == value


PYTHON_PARTS = st.sampled_from([*"()[]{},:'\"\\ 1-.e", "True", "None", "'a'", "\\x41", "#", "x"])


@given(st.lists(PYTHON_PARTS, max_size=12).map("".join))
def test_what_is_read_as_python_means_the_same_in_python(word: str):
    value = typed(word, {"type": ["array", "object"]})
    if value != word and json.dumps(value) != word:
        said = ast.literal_eval(word)
        assert json.loads(json.dumps(said)) == value
