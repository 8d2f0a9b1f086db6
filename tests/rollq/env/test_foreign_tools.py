"""Tools of a benchmark's package: copied arguments, and errors as observations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from rollq.env.foreign_tools import (
    MAX_DEPTH,
    MAX_INTEGER,
    TOOL_ERRORS,
    copy_record,
    guarded,
    own_copy,
    untouched,
)


class TimeLimit(Exception):
    """As task queues raise into a running task."""


def test_a_tool_gets_arguments_of_its_own() -> None:
    given = {"tags": ["a"]}
    assert guarded(
        lambda arguments: arguments["tags"].append("kept") or str(arguments), given
    ) == str({"tags": ["a", "kept"]})
    assert given == {"tags": ["a"]}


@pytest.mark.parametrize("error", TOOL_ERRORS)
def test_an_error_of_the_call_is_an_observation(error: type[Exception]) -> None:
    def tool(arguments: dict[str, object]) -> str:
        raise error("no such order")

    assert guarded(tool, {}).startswith("Error: ") and "no such order" in guarded(tool, {})


def test_any_other_error_gets_through() -> None:
    def tool(arguments: dict[str, object]) -> str:
        raise TimeLimit("soft limit")

    with pytest.raises(TimeLimit):
        guarded(tool, {})


def test_the_depth_and_the_integers_of_an_own_copy_are_bounded() -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert own_copy(deep) == deep and own_copy([MAX_INTEGER, -MAX_INTEGER, 1e300])
    with pytest.raises(ValueError, match="nested too deeply"):
        own_copy([deep])
    with pytest.raises(ValueError, match="too large"):
        own_copy({"n": -MAX_INTEGER - 1})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 2)
    | st.sampled_from([0.0, -0.0, 1.0, 2.0])
    | st.sampled_from("ab"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


class Person(BaseModel):
    model_config = ConfigDict(extra="allow")
    about: Any
    next: Any = None


RECORDS = JSON | st.builds(Person, about=JSON, next=JSON) | st.builds(Person, about=JSON, more=JSON)


def canon(record: object) -> str:
    return repr(record)


@given(RECORDS, RECORDS)
def test_only_a_record_that_nothing_was_done_to_is_untouched(one: object, other: object) -> None:
    assert untouched(copy_record(one), one)
    if untouched(one, other):
        assert canon(one) == canon(other)


@given(st.dictionaries(st.sampled_from("abc"), JSON, min_size=1), st.sampled_from("abcd"), JSON)
def test_a_record_in_which_something_was_set_is_told_apart(
    record: dict[str, Any], key: str, value: object
) -> None:
    person = Person(about=record)
    copied, model = copy_record(record), copy_record(person)
    copied[key], model.about[key] = value, value
    if canon(copied) != canon(record):
        assert not untouched(copied, record) and not untouched(model, person)
    model = copy_record(person)
    model.added = value
    assert not untouched(model, person)
    assert canon(person) == canon(Person(about=record))


def test_numbers_that_are_equal_but_written_otherwise_are_told_apart() -> None:
    for one, other in ((1, 1.0), (1, True), (0.0, -0.0)):
        assert not untouched({"n": one}, {"n": other}) and not untouched([one], [other])
