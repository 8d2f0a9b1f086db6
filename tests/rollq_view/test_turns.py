"""The turns of a journal and those of its exported record are the same."""

import json
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import ContractError
from rollq.export import record as exported_record
from rollq.export.record import record
from rollq.trajectory import Trajectory
from rollq_view.conversation import as_json, page
from rollq_view.exported import page_of_record
from rollq_view.turns import Episode, of_record, of_trajectory
from tests.rollq.agent_episodes import branching, interleaved
from tests.rollq.export.trajectories import sound, sound_traces
from tests.rollq.samples import observed, prompt, sampled, trajectory
from tests.rollq_view.hostile import said_everywhere


def same(episode: Episode) -> Episode:
    """Without what only a journal has."""
    only = ("errors", "extra_calls", "cached")
    turns = [
        replace(
            turn,
            notes={name: value for name, value in turn.notes.items() if name not in only},
            replies=list(turn.replies),
        )
        for turn in episode.turns
    ]
    return replace(episode, turns=turns, tools=[], opening=list(episode.opening))


def exported(of: Trajectory) -> dict[str, object]:
    found: dict[str, object] = json.loads(exported_record.as_json(record(of)))
    return found


@given(sound_traces, st.integers(0, 4), st.sampled_from([{}, {"kind": "window", "over": 9, "turns": 1}]))
def test_a_journal_and_its_record_have_the_same_turns(shape: list, cut: int, context: dict) -> None:  # type: ignore[type-arg]
    whole = sound(shape)
    whole = replace(whole, job=replace(whole.job, context=context))
    part = replace(whole, events=whole.events[: len(whole.events) - cut] if cut < len(whole.events) else whole.events)
    assert same(of_record(exported(part))) == same(of_trajectory(part))


def test_hostile_words_too() -> None:
    made = said_everywhere()
    assert same(of_record(exported(made))) == same(of_trajectory(made))


def test_what_the_assistant_says_in_the_first_prompt_is_no_turn() -> None:
    shown = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}, *prompt().messages]
    made = replace(trajectory(), events=[replace(prompt(), messages=shown), *trajectory().events[1:]])
    assert same(of_record(exported(made))) == same(of_trajectory(made))


def test_an_interrupted_turn_is_one_turn_with_its_pieces_and_versions() -> None:
    events = [prompt(), sampled(0, 1, 2, version="a"), sampled(0, 3, version="b"), observed(0)]
    [turn] = of_trajectory(replace(trajectory(), events=events)).turns
    assert (turn.ids, turn.versions) == ([1, 2, 3], [["a", 0, 2], ["b", 2, 3]])
    assert turn.pieces == [[2, "stop"], [1, "stop"]]


def test_a_turn_that_nothing_answered_shows_what_the_engine_wrote() -> None:
    made = replace(trajectory(), events=[prompt(), sampled(0)])
    for entries in (page(record(made))["entries"], page(record(made), made)["entries"]):
        assert (entries[-1]["text"], entries[-1]["answered"]) == ("hm", False)


def test_assistant_messages_of_the_prompt_do_not_answer_the_turn_that_failed() -> None:
    shown = [*prompt().messages, {"role": "assistant", "content": "4"}, *prompt().messages]
    for events in ([sampled(0)], [sampled(0), observed(0), sampled(1)]):
        made = replace(trajectory(), events=[replace(prompt(), messages=shown), *events])
        assert same(of_record(exported(made))) == same(of_trajectory(made))


def test_the_spans_of_a_page_are_its_tokens_in_order() -> None:
    made = trajectory()
    tokens = page(record(made), made)["tokens"]
    ends = list(accumulate(length for length, _, _ in tokens["spans"]))
    assert ends[-1] == tokens["total"] == len(made.tokens)
    mask = b"".join(bytes([trained]) * length for length, trained, _ in tokens["spans"])
    assert mask == made.mask


odd = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


odd_messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "tool_call_id"]), odd), max_size=4
)
damages = st.dictionaries(st.sampled_from(sorted(record(trajectory()))), odd, min_size=1, max_size=3)


@settings(max_examples=300)
@given(damages | odd_messages.map(lambda messages: {"messages": messages}))
def test_a_damaged_record_is_shown_or_is_one_typed_error(damage: dict[str, object]) -> None:
    try:
        shown = page_of_record(record(trajectory()) | damage)
    except ContractError as e:
        assert "cannot be shown" in str(e)
    else:
        json.loads(as_json(shown), parse_constant=pytest.fail)


@given(interleaved())
def test_traces_that_took_turns_are_shown_one_after_the_other(pair: tuple[Trajectory, Trajectory]) -> None:
    for made in pair:
        episode = of_trajectory(made)
        assert same(of_record(exported(made))) == same(episode)
        sampled_ids = [id for id, trained in zip(made.tokens, made.mask, strict=True) if trained]
        assert [id for turn in episode.turns for id in turn.ids] == sampled_ids
        assert page(exported(made))["tokens"]["total"] == len(made.tokens)


def test_a_page_has_traces_steps_and_what_was_asked_for() -> None:
    for shown in (page(exported(branching())), page(exported(branching()), branching())):
        entries = shown["entries"]
        roles = [entry["role"] for entry in entries]
        assert (roles.count("trace"), roles.count("step")) == (3, 2)
        assert [entry["turn"] for entry in entries if entry["turn"] is not None] == [0, 2, 1, 3, 4]
        assert [entry["asked"] for entry in entries if entry["turn"] == 3] == [{"temperature": 0.3}]
        assert "agent" in {what for what, *_ in shown["times"]}
