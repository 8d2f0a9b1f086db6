"""A sound trajectory has no faults, and each kind of damage has one."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.events import Stop
from rollq.export.facts import FACTS
from rollq.export.record import record
from rollq.export.validation import faults
from rollq.trajectory_extras import Extra
from tests.rollq.export.trajectories import played, sound, sound_traces
from tests.rollq.token_rows import Trace, scored

Record = dict[str, Any]
Draw = Callable[[Any], Any]
Damage = Callable[[Record, Draw], object]


def of(shape: list[Trace]) -> Record:
    found: Record = json.loads(json.dumps(record(sound(shape))))
    return found


@given(sound_traces, st.booleans())
def test_what_is_exported_is_sound(shape: list[Trace], cut: bool) -> None:
    """Also when a last trace ended before anything was sampled in it."""
    shape = [*shape, (2, [])] if cut else shape
    assert faults(of(shape)) == []


def test_an_episode_without_a_grade_is_sound_too() -> None:
    failed = record(played(0, 0, None, Stop.FAILED)) | {
        "failure": "engine",
        "turns": 0,
        "turn_rewards": [],
    }
    assert faults(failed) == []


@given(sound_traces, st.data())
def test_every_field_is_missed_and_its_kind_checked(
    shape: list[Trace], data: st.DataObject
) -> None:
    required = [name for name, fact in FACTS.items() if not fact.is_optional]
    found, name = of(shape), data.draw(st.sampled_from(required))
    kinds = [True, math.nan, "", b"x"] + [-1] * (name != "reward")  # any finite number is a reward
    wrong_kind = data.draw(st.sampled_from(kinds))
    [fault] = faults({**found, name: wrong_kind})
    assert fault.startswith(f"{name} must be ")
    del found[name]
    assert faults(found) == [f"it has no {name}"]


def place(found: Record, draw: Draw, mask: int | None = None) -> int:
    """Any token, or any that was sampled (1) or not (0)."""
    places = [i for i, sampled in enumerate(found["mask"]) if mask in (None, sampled)]
    return int(draw(st.sampled_from(places)))


def put(name: str, *values: Any, mask: int | None = None) -> Damage:
    """One of these values at the place of one token."""

    def damage(found: Record, draw: Draw) -> None:
        found[name][place(found, draw, mask)] = draw(st.sampled_from(values))

    return damage


def set_to(name: str, *values: Any) -> Damage:
    return lambda found, draw: found.update({name: draw(st.sampled_from(values))})


def added(name: str, *values: Any) -> Damage:
    return lambda found, draw: found[name].append(draw(st.sampled_from(values)))


def flipped_mask(found: Record, draw: Draw) -> None:
    at = place(found, draw)
    found["mask"][at] = 1 - found["mask"][at]


def moved_trace(found: Record, draw: Draw) -> None:
    found["traces"][draw(st.integers(0, len(found["traces"]) - 1))] += draw(st.sampled_from([1, 7]))


def other_job(found: Record, draw: Draw) -> None:
    found[draw(st.sampled_from(["run", "group"]))] += "x"


def odd_turn_reward(found: Record, draw: Draw) -> None:
    found["turn_rewards"][-1] = draw(st.sampled_from(["1", math.inf, True, [0.5]]))


TIMES = [
    7,
    ["engine"],
    ["", 1.0, 1.0, 0],
    ["engine", math.nan, 1.0, 0],
    ["engine", 1.0, "x", 0],
    ["user", 1, 1, -1],
]
PIECES = [7, [1], ["x", "stop"], [[], "stop"]]
BY_TOKEN = ["tokens", "mask", "logprobs", "versions"]
DAMAGES: list[tuple[str, Damage, str]] = [
    (
        "a list without its last",
        lambda found, draw: found[draw(st.sampled_from(BY_TOKEN))].pop(),
        "its lengths differ",
    ),
    ("no number", put("logprobs", math.nan, math.inf, -math.inf, None, "-1", True), "token "),
    ("no id", put("tokens", -1, 2**32, 1.5, None, "7", True), "is not a token id"),
    ("no mask", put("mask", 2, -1, None, True), "is neither 0 nor 1"),
    ("no version", put("versions", None, "", 3, mask=1), "is not a name"),
    ("flipped mask", flipped_mask, "token "),
    ("shifted mask", lambda found, _: found.update(mask=[*found["mask"][1:], 0]), "token "),
    (
        "logprob of the prompt",
        put("logprobs", -0.5, mask=0),
        "it was not sampled, and has logprob -0.5",
    ),
    (
        "shifted logprobs",
        lambda found, _: found.update(logprobs=[*found["logprobs"][1:], 0.0]),
        "it was not sampled, and has logprob",
    ),
    ("moved trace", moved_trace, "its traces make "),
    ("a piece too many", added("pieces", *([n, "stop"] for n in range(1, 10))), "its pieces make "),
    (
        "odd piece",
        added("pieces", *PIECES),
        "pieces must be a length, a finish and perhaps a mapping",
    ),
    ("no reward", set_to("reward", None), "carry a reward"),
    ("reward of a failure", set_to("stop", "failed", "aborted"), "carry a reward"),
    ("graded failure", set_to("failure", "env"), "a graded episode has none"),
    ("other job", other_job, "is not run "),
    ("no job", set_to("job", "r g 0"), "is not a job id"),
    (
        "other turns",
        lambda found, draw: found.update(turns=found["turns"] + draw(st.integers(1, 2))),
        "turns, and the",
    ),
    ("odd turn reward", odd_turn_reward, "turn_rewards must be a list of null or finite numbers"),
    ("lost turn reward", lambda found, _: found["turn_rewards"].pop(), " turn_rewards"),
    (
        "odd arguments",
        set_to("template_kwargs", None, "enable_thinking", ["a"]),
        "template_kwargs must be a mapping",
    ),
    ("odd adapter", set_to("adapter", None, ""), "adapter must be a text"),
    ("odd time", added("times", *TIMES), "times must be "),
    ("no times", set_to("times", "never"), "times must be "),
    ("lost message", lambda found, _: found["messages"].pop(), "messages of the assistant"),
]


@pytest.mark.parametrize(("damage", "said"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
@settings(max_examples=25)
@given(shape=sound_traces, data=st.data())
def test_damage_is_found(damage: Damage, said: str, shape: list[Trace], data: Any) -> None:
    found = of(shape)
    damage(found, data.draw)
    assert any(said in fault for fault in faults(found)), faults(found)


@pytest.mark.parametrize("name", ["stop", "failure"])
def test_a_list_in_place_of_a_name_is_a_fault(name: str) -> None:
    assert any(
        fault.startswith(f"{name} must be ")
        for fault in faults({**of([(2, [([2], 1)])]), name: []})
    )


def test_a_piece_of_two_turns_is_found() -> None:
    found = of([(2, [([2], 1), ([1, 2], 1)])])
    found["pieces"] = [[3, "abort"], [2, "stop"]]
    assert faults(found) == [
        "its pieces end at [3, 5] of the sampled tokens, and the turns at [2, 5]"
    ]


EXTRA = {"dtype": "int32", "shape": [2], "data": "AAAAAAAAAAA="}


@pytest.mark.parametrize(
    "odd",
    [
        7,
        {"a": 7},
        {"a": {**EXTRA, "shape": [3]}},
        {"a": {**EXTRA, "data": "AAA"}},
        {"a": {"dtype": "int32"}},
    ],
)
def test_extras_are_checked(odd: Any) -> None:
    exported = record(
        replace(played(0, 0, 1.0), extras={"a": Extra(dtype="int32", shape=(2,), data=bytes(8))})
    )
    assert exported["extras"] == {"a": EXTRA} and faults(exported) == []
    [fault] = faults(exported | {"extras": odd})
    assert "extra" in fault


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(teacher_logprobs={}),
        lambda record: record["teacher_logprobs"].update(code=[]),
        lambda record: record["teacher_logprobs"]["math"].pop(),
        lambda record: record["teacher_logprobs"]["math"].reverse(),
        lambda record: record["teacher_logprobs"].update(math="x"),
        lambda record: record.pop("teachers"),
    ],
)
def test_a_teachers_logprobs_are_checked(change: Callable[[dict[str, Any]], object]) -> None:
    trajectory = scored(sound([(3, [([2], 1), ([1], 0)])]), "math")
    job = replace(trajectory.job, teachers={"math": {}})
    exported = record(replace(trajectory, job=job))
    assert faults(exported) == []
    change(exported)
    found = faults(exported)
    assert found and all("teacher" in fault for fault in found)


def test_an_episode_that_failed_has_no_scores() -> None:
    trajectory = sound([(3, [([2], 1), ([1], 0)])])
    job = replace(trajectory.job, teachers={"math": {}})
    exported = record(replace(trajectory, job=job))
    assert len(faults(exported)) == 1
    failed = {"stop": "failed", "reward": None, "failure": "teacher"}
    assert faults({**exported, **failed}) == []
