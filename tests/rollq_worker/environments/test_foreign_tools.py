"""Tools of a benchmark's package: copied arguments, and errors as observations."""

import pytest

from rollq_worker.environments.foreign_tools import MAX_DEPTH, MAX_INTEGER, TOOL_ERRORS, guarded, own_copy


class TimeLimit(Exception):
    """As task queues raise into a running task."""


def test_a_tool_gets_arguments_of_its_own() -> None:
    given = {"tags": ["a"]}
    assert guarded(lambda arguments: arguments["tags"].append("kept") or str(arguments), given) == str(
        {"tags": ["a", "kept"]}
    )
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


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert guarded(lambda arguments: "é \ud800", {}) == "é ?"


def test_the_depth_and_the_integers_of_an_own_copy_are_bounded() -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert own_copy(deep) == deep and own_copy([MAX_INTEGER, -MAX_INTEGER, 1e300])
    with pytest.raises(ValueError, match="nested too deeply"):
        own_copy([deep])
    with pytest.raises(ValueError, match="too large"):
        own_copy({"n": -MAX_INTEGER - 1})
