"""What is derived of an episode whose traces took turns is what each trace would give by itself."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import given

from rollq.events import Prompt, Sampled
from rollq.token_stats import count_tokens
from rollq.training.staleness import staleness, version_tokens
from rollq.trajectory import Trajectory
from rollq.wire.routed_experts import routed_experts
from tests.rollq.agent_episodes import branching, interleaved, user
from tests.rollq.routed_experts import ASKED, routed
from tests.rollq.token_rows import batch_of

Pair = tuple[Trajectory, Trajectory]


def test_rows_have_the_messages_of_their_trace() -> None:
    first, second, third = branching().segments()
    assert [s.prompt_messages[-1]["content"] for s in (first, second, third)] == [
        "Hello",
        "Look it up",
        "or rather",
    ]
    assert [m["content"] for m in second.messages] == ["a1", "and?", "a3"]


def test_the_conversation_is_that_of_the_first_trace_and_of_what_goes_on_from_all_of_it() -> None:
    made = branching()
    assert [m["content"] for m in made.messages] == ["Be brief.", "Hello", "a0", "go on", "a2"]
    assert [len(conversation) for conversation in made.conversations] == [5, 5, 5]
    more = Prompt(ids=made.spans[0].ids, messages=[*made.messages, user("more")], tools=[])
    longer = replace(made, events=[*made.events[:-1], more, made.events[-1]])
    assert longer.messages == [*made.messages, user("more")]


def test_weights_that_change_between_the_turns_of_two_traces_are_no_step_back() -> None:
    versions = iter("11223")
    events = [
        replace(event, versions=[replace(event.versions[0], version=next(versions))])
        if isinstance(event, Sampled)
        else event
        for event in branching().events
    ]
    made = replace(branching(), events=events)
    assert made.versions.count("2") == 2
    assert count_tokens(made).version_breaks == 0


@given(interleaved())
def test_rows_and_counts_do_not_depend_on_the_order_in_the_journal(pair: Pair) -> None:
    straight, mixed = pair
    assert (
        mixed.tokens == straight.tokens
        and mixed.mask == straight.mask
        and mixed.logprobs == straight.logprobs
    )
    assert (mixed.versions, mixed.traces) == (straight.versions, straight.traces)
    assert mixed.segments() == straight.segments()
    assert mixed.conversations == straight.conversations
    assert version_tokens([mixed]) == version_tokens([straight])
    assert staleness([mixed], 3, {"1": 1}) == staleness([straight], 3, {"1": 1})
    counts, others = count_tokens(mixed).counts, count_tokens(straight).counts
    counts.pop("version_breaks"), others.pop("version_breaks")
    assert counts == others


@given(interleaved())
def test_arrays_too(pair: Pair) -> None:
    straight, mixed = (batch_of([trajectory]) for trajectory in pair)
    for name in ("arrays", "packed"):
        first, second = (vars_of(getattr(batch, name)()) for batch in (straight, mixed))
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[key], second[key]) for key in first)


def vars_of(arrays: Any) -> dict[str, object]:
    return {name: getattr(arrays, name) for name in (field.name for field in fields(arrays))}


@given(interleaved())
def test_routed_experts_are_those_of_the_trace(pair: Pair) -> None:
    straight, mixed = (replace(each, job=replace(each.job, routed_experts=ASKED)) for each in pair)
    straight, mixed = (replace(each, events=routed(each.events)) for each in (straight, mixed))
    assert routed_experts(mixed) == routed_experts(straight)
