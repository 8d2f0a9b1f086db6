"""Kinds of traces, and the choice among them."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollq.errors import ContractError, FunctionError
from rollq.events import Event, Message, Prompt
from rollq.trajectory import Segment, Trajectory
from tests.rollq.agent_episodes import answered, branching, opened, said, user
from tests.rollq.samples import closed, job, trajectory
from tests.rollq.token_rows import batch_of, episode

SYSTEM = {"role": "system", "content": "You are an agent."}
OTHER = {"role": "system", "content": "You help an agent."}
TASK, SUMMARY = user("Fix it."), user("A summary: it is half fixed.")


def tools(*names: str) -> list[object]:
    return [{"type": "function", "function": {"name": name}} for name in names]


BOTH, ONE = tools("Bash", "Agent"), tools("Bash")


def turn(number: int, words: str | None = None) -> Message:
    """A turn of the policy, as a client writes it back."""
    return {"role": "assistant", "content": words or f"a{number}"}


def played(*steps: Prompt | tuple[int, int]) -> Trajectory:
    """The episode of these prompts and turns, `(turn, trace)`, each answered before its trace goes
    on.
    """
    events: list[Event] = []
    waiting: dict[int, int] = {}
    for step in steps:
        if isinstance(step, Prompt):
            events.append(step)
            continue
        number, trace = step
        if trace in waiting:
            events.append(answered(waiting[trace], trace, [9], 1.0, user("go on")))
        events.append(said(number, trace, [number + 20], 1.0))
        waiting[trace] = number
    ends = [answered(number, trace, [], 1.0) for trace, number in waiting.items()]
    return replace(trajectory(of=job(agent="program")), events=[*events, *ends, closed()])


def asks(*messages: Message, tools: Sequence[object] = BOTH) -> Prompt:
    return opened([1], *messages, tools=tools)


MAIN = asks(SYSTEM, TASK)
KINDS: dict[str, tuple[Trajectory, str]] = {
    "alone": (played(MAIN, (0, 0)), "m"),
    "a sub-agent with fewer tools": (
        played(MAIN, (0, 0), asks(OTHER, user("Look."), tools=ONE), (1, 1), (2, 1), (3, 0)),
        "mh",
    ),
    "a sub-agent with the same prompt and tools": (
        played(MAIN, (0, 0), asks(SYSTEM, user("Look.")), (1, 1), (2, 0)),
        "mh",
    ),
    "a title before it, a topic check behind it": (
        played(
            asks(OTHER, TASK, tools=()), MAIN, (0, 0), (1, 1), asks(OTHER, TASK, tools=()), (2, 2)
        ),
        "hmh",
    ),
    "a title where nobody has tools": (
        played(asks(SYSTEM, TASK, tools=()), (0, 0), asks(OTHER, TASK, tools=()), (1, 1)),
        "mh",
    ),
    "a summary without tools, and what begins again with it": (
        played(
            MAIN,
            (0, 0),
            (1, 0),
            asks(SYSTEM, TASK, turn(0), user("go on"), turn(1), user("Sum up."), tools=()),
            (2, 1),
            asks(SYSTEM, TASK, SUMMARY),
            (3, 2),
            asks(SYSTEM, TASK, turn(3), user("Sum up."), tools=()),
            (4, 3),
            asks(SYSTEM, TASK, SUMMARY),
            (5, 4),
        ),
        "mhmhm",
    ),
    "a summary of all but the end, and what goes on behind the end": (
        played(
            MAIN,
            (0, 0),
            (1, 0),
            asks(SYSTEM, TASK, turn(0), user("Sum up.")),
            (2, 1),
            asks(SYSTEM, SUMMARY, turn(1), user("go on")),
            (3, 2),
        ),
        "mhm",
    ),
    "a clock in the system prompt": (
        played(
            MAIN,
            (0, 0),
            asks(OTHER, TASK, turn(0), user("go on")),
            (1, 1),
            asks(SYSTEM, TASK, turn(0), user("go on"), turn(1), user("go on")),
            (2, 2),
        ),
        "mmm",
    ),
    "turns that the agent writes anew, and a tool more": (
        played(
            MAIN,
            (0, 0),
            asks(SYSTEM, TASK, turn(0, "(cut)"), user("x"), tools=[*BOTH, *tools("Web")]),
            (1, 1),
        ),
        "mm",
    ),
    "an agent that asks aside with its own history": (
        played(MAIN, (0, 0), asks(SYSTEM, TASK, turn(0), user("Is it safe?")), (1, 1), (2, 0)),
        "mh",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str) -> None:
    trajectory, kinds = KINDS[name]
    assert "".join(kind[0] for kind in trajectory.kinds) == kinds
    chosen = trajectory.segments("main")
    assert [each.trace for each in chosen] == [n for n, kind in enumerate(kinds) if kind == "m"]


def test_rollqs_own_loop_has_one_conversation_in_all_its_traces() -> None:
    made = episode([(3, [([2], 1)]), (6, [([1, 2], 0)]), (4, [])], itertools.count())
    assert made.kinds == ["main"] * 3
    assert made.segments("main") == made.segments()


@pytest.mark.parametrize(
    ("traces", "rows"),
    [
        ("all", [0, 1, 2]),
        ("main", [0]),
        ("longest", [0]),
        (lambda segments: [], []),
        (lambda segments: [each for each in segments if each.kind == "helper"], [1, 2]),
        (lambda segments: segments[::-1][:2], [1, 2]),
    ],
)
def test_traces_to_train_on(traces: Any, rows: list[int]) -> None:
    assert [segment.trace for segment in branching().segments(traces)] == rows


@pytest.mark.parametrize(
    ("choose", "says"),
    [
        (lambda segments: segments[9], "IndexError"),
        (lambda segments: None, "TypeError"),
        (lambda segments: branching().segments(), "other than|else than segments"),
        (lambda segments: [0], "else than segments"),
    ],
)
def test_a_function_of_traces_that_fails_is_named_with_the_job(
    choose: Callable[[Sequence[Segment]], Sequence[Segment]], says: str
) -> None:
    with pytest.raises(FunctionError, match=rf"job r/g/0: the function of traces: .*({says})"):
        batch_of([branching()]).arrays(traces=choose)


def test_another_name_of_traces_is_refused() -> None:
    with pytest.raises(ContractError, match="no traces 'first': there is all, main, longest"):
        batch_of([branching()]).packed(traces="first")
