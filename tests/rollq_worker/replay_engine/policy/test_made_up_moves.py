"""Random calls for tasks without ground truth."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rollq.env import RESPOND, Task
from rollq_worker.replay_engine.policy.made_up_moves import CALLS, made_up_moves
from rollq_worker.replay_engine.policy.task_progress import TaskIndex


def task(id: str) -> Task:
    return Task(id=id, hash="h", instruction="i", opening=f"o {id}", replies=("bye",), moves=())


def tool(name: str, parameters: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SIMPLE = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "string"},
        {"type": ["string", "null"]},
        {"enum": ["a", 1, None]},
        {"const": {"x": 1}},
        {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    ]
)
SCHEMAS = st.recursive(
    SIMPLE,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda known: {"type": "object", "properties": known, "required": [*known][:1]},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        )
    ),
    max_leaves=4,
)
OBJECTS = st.builds(
    lambda known: {"type": "object", "properties": known, "required": [*known][:1]},
    st.dictionaries(
        st.sampled_from("abc"),
        SIMPLE | SCHEMAS.filter(lambda schema: str(schema).count("type") < 4),
    ),
)


@given(st.lists(OBJECTS, min_size=1, max_size=3), st.text())
def test_calls_fit_the_schemas(parameters: list[Any], id: str) -> None:
    tools = [tool(f"t{n}", each) for n, each in enumerate(parameters)]
    *calls, last = made_up_moves(task(id), tools)
    assert len(calls) == CALLS and last.name == RESPOND
    for call in calls:
        Draft202012Validator(parameters[int(call.name[1:])]).validate(dict(call.arguments))
    assert made_up_moves(task(id), tools) == (*calls, last)


def test_tasks_differ_and_odd_schemas_are_no_error() -> None:
    odd = [
        tool("a", None),
        tool("b", {"properties": {"x": True, "y": {"type": []}}}),
        {"function": {"name": "c"}},
    ]
    assert len({str(made_up_moves(task(str(n)), odd)) for n in range(20)}) > 5
    assert [move.name for move in made_up_moves(task("1"), ())] == [RESPOND]


WORDS_OF_SCHEMAS = st.sampled_from(
    ["type", "properties", "required", "anyOf", "enum", "items", "const"]
)
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "array", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS_OF_SCHEMAS, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(WORDS_OF_SCHEMAS, NONSENSE))
def test_what_is_no_schema_is_no_error(parameters: dict[str, Any]) -> None:
    *calls, _ = made_up_moves(task("1"), [tool("a", parameters)])
    json.dumps([dict(call.arguments) for call in calls])


class World:
    opened = 0

    def splits(self) -> dict[str, int]:
        return {"train": 3}

    def task(self, split: str, index: int) -> Task:
        return task(str(index))

    def open(self, split: str, index: int, args: Any) -> Any:
        self.opened += 1
        return self

    tools = (
        tool(
            "add", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        ),
    )
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_the_engine_plays_them() -> None:
    world = World()
    found = TaskIndex([world]).by_opening("o 2")  # type: ignore[list-item]
    assert found is not None and [move.name for move in found.moves] == ["add"] * CALLS + [RESPOND]
    assert (world.opened, world.closed) == (1, 1)
