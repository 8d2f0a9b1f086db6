"""Moves for tasks without ground truth: random calls with arguments that fit the tools' schemas,
and a last word.

The invariant: the moves follow from the task and its tools alone, so any server plays the same.
They earn nothing on purpose: they are there to try an environment. References, bounds and unknown
parts in schemas are passed over.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.env import RESPOND, Action, Task
from rollq.job import Json

CALLS = 3
WORDS = ("alpha", "beta", "gamma", "delta")


def made_up_moves(task: Task, tools: Sequence[Json]) -> tuple[Action, ...]:
    """Up to CALLS calls, each of a random tool, and then words to the user."""
    rng = random.Random(f"{task.id} {task.hash}")
    calls = (rng.choice(tools)["function"] for _ in range(CALLS if tools else 0))
    moves = []
    for call in calls:
        arguments = _object(call.get("parameters") or {}, rng, 4)
        moves.append(Action(call["name"], arguments))
    last_word = "I have tried the tools; that is all that I can say."
    return *moves, Action(RESPOND, {"content": last_word})


def _object(schema: Mapping[str, Any], rng: random.Random, depth: int) -> dict[str, Json]:
    """An object with all required properties, and some of the others."""
    properties = _part(schema, "properties", dict)
    required = _part(schema, "required", list)
    return {
        name: _value(property_schema, rng, depth - 1)
        for name, property_schema in properties.items()
        if name in required or rng.random() < 0.5
    }


def _value(schema: Any, rng: random.Random, depth: int) -> Json:
    schema = schema if isinstance(schema, Mapping) else {}
    for several in ("anyOf", "oneOf", "allOf"):
        choices = _part(schema, several, list)
        if choices:
            return _value(rng.choice(choices), rng, depth)
    if "const" in schema:
        return schema["const"]
    choices = _part(schema, "enum", list)
    if choices:
        return rng.choice(choices)
    kind = schema.get("type", "string")
    if isinstance(kind, list) and kind:
        kind = rng.choice(kind)
    return _value_of_kind(kind, schema, rng, depth)


def _value_of_kind(
    kind: Any,
    schema: Mapping[str, Any],
    rng: random.Random,
    depth: int,
) -> Json:
    match kind:
        case "integer":
            return rng.randrange(10)
        case "number":
            return rng.randrange(100) / 10
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            if depth > 0:
                return [_value(schema.get("items"), rng, depth - 1)]
            return []
        case "object":
            return _object(schema, rng, depth) if depth > 0 else {}
    return rng.choice(WORDS)


def _part(schema: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """A part of the schema; an empty one where it is missing or of another kind."""
    part = schema.get(name)
    return part if isinstance(part, kind) else kind()
