"""The turns of an exported record are those of its journal."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import ContractError
from rollq.events import Observed, Prompt, Sampled
from rollq.export import record as exported_record
from rollq.export.record import record
from rollq.trajectory import Trajectory
from rollq_view.conversation import as_json, page
from rollq_view.exported import page_of_record
from rollq_view.turns import of_record
from tests.rollq.agent_episodes import branching, interleaved
from tests.rollq.export.trajectories import sound, sound_traces
from tests.rollq.samples import observed, prompt, sampled, trajectory


def exported(of: Trajectory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(exported_record.as_json(record(of)))
    return found


def check(made: Trajectory) -> None:
    """The turns of its record have what its journal says of each, and the tokens between them are
    counted once.
    """
    episode = of_record(exported(made))
    sampled_in: dict[int, list[Sampled]] = {}
    answers = {event.turn: event for event in made.events if isinstance(event, Observed)}
    for event in made.events:
        if isinstance(event, Sampled):
            sampled_in.setdefault(event.turn, []).append(event)
    assert [turn.number for turn in episode.turns] == list(sampled_in)
    for turn, pieces in zip(episode.turns, sampled_in.values(), strict=True):
        assert turn.ids == [id for piece in pieces for id in piece.ids]
        assert turn.logprobs == [logprob for piece in pieces for logprob in piece.logprobs]
        assert turn.pieces == [[len(piece.ids), piece.finish.value] for piece in pieces]
        spans = [
            (span.version, span.end - span.start) for piece in pieces for span in piece.versions
        ]
        named = [name for name, length in spans for _ in range(length)]
        assert [name for name, start, end in turn.versions for _ in range(start, end)] == named
        answer = answers.get(turn.number)
        assert turn.message == (answer.message if answer else None)
        assert [*turn.replies] == (list(answer.replies) if answer else [])
        assert turn.text == ("" if answer else "".join(piece.text for piece in pieces))
    first = next((event for event in made.events if isinstance(event, Prompt)), None)
    assert episode.opening == (list(first.messages) if first else [])
    masked = episode.prompt + sum(turn.masked for turn in episode.turns)
    assert masked + sum(len(turn.ids) for turn in episode.turns) == len(made.tokens)


@given(sound_traces, st.integers(0, 4))
def test_a_record_has_the_turns_of_its_journal(shape: list, cut: int) -> None:  # type: ignore[type-arg]
    whole = sound(shape)
    check(
        replace(
            whole,
            events=whole.events[: len(whole.events) - cut]
            if cut < len(whole.events)
            else whole.events,
        )
    )


def test_what_the_assistant_says_in_the_first_prompt_is_no_turn() -> None:
    shown = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        *prompt().messages,
    ]
    check(
        replace(trajectory(), events=[replace(prompt(), messages=shown), *trajectory().events[1:]])
    )


def test_a_turn_that_nothing_answered_shows_what_the_engine_wrote() -> None:
    made = replace(trajectory(), events=[prompt(), sampled(0)])
    for entries in (page(record(made))["entries"], page(record(made), made)["entries"]):
        assert (entries[-1]["text"], entries[-1]["answered"]) == ("hm", False)


def test_assistant_messages_of_the_prompt_do_not_answer_the_turn_that_failed() -> None:
    shown = [*prompt().messages, {"role": "assistant", "content": "4"}, *prompt().messages]
    for events in ([sampled(0)], [sampled(0), observed(0), sampled(1)]):
        check(replace(trajectory(), events=[replace(prompt(), messages=shown), *events]))


def test_the_spans_of_a_page_are_its_tokens_in_order() -> None:
    made = trajectory()
    tokens = page(record(made), made)["tokens"]
    ends = list(accumulate(length for length, _, _ in tokens["spans"]))
    assert ends[-1] == tokens["total"] == len(made.tokens)
    mask = b"".join(bytes([trained]) * length for length, trained, _ in tokens["spans"])
    assert mask == made.mask


odd = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


odd_messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "tool_call_id"]), odd),
    max_size=4,
)
damages = st.dictionaries(
    st.sampled_from(sorted(record(trajectory()))), odd, min_size=1, max_size=3
)


@pytest.mark.parametrize(
    "damage",
    [
        {"times": [["engine", 10**400, 1, 0]]},
        {"logprobs": [10**400]},
        {"messages": [{"role": "user", "content": json.loads("[" * 900 + "]" * 900)}]},
    ],
)
def test_a_record_with_what_no_float_holds(damage: dict[str, object]) -> None:
    with suppress(ContractError):
        page_of_record(record(trajectory()) | damage)


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
def test_traces_that_took_turns_are_shown_one_after_the_other(
    pair: tuple[Trajectory, Trajectory],
) -> None:
    for made in pair:
        episode = of_record(exported(made))
        sampled_ids = [id for id, trained in zip(made.tokens, made.mask, strict=True) if trained]
        assert [id for turn in episode.turns for id in turn.ids] == sampled_ids
        assert page(exported(made))["tokens"]["total"] == len(made.tokens)


def test_numbers_that_the_pages_script_would_round_are_texts() -> None:
    number = 1234567890123456789
    of = replace(trajectory().job, labels={"id": number, "in": {"id": number}, "of": "x"})
    labels = page_of_record(record(trajectory(of=of)))["labels"]
    assert labels == {"id": f"{number}", "in": f'{{"id": {number}}}', "of": "x"}


def test_a_page_has_traces_steps_and_what_was_asked_for() -> None:
    for shown in (page(exported(branching())), page(exported(branching()), branching())):
        entries = shown["entries"]
        roles = [entry["role"] for entry in entries]
        assert (roles.count("trace"), roles.count("step")) == (3, 2)
        assert [entry["turn"] for entry in entries if entry["turn"] is not None] == [0, 2, 1, 3, 4]
        assert [entry["asked"] for entry in entries if entry["turn"] == 3] == [
            {"temperature": "0.3"}
        ]
        assert "agent" in {what for what, *_ in shown["times"]}
