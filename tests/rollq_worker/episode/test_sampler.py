"""Sampling a turn: budgets, interruptions, stop strings and parameters."""

import pytest

from rollq import errors
from rollq.events import Finish, Sampled, Stop
from rollq_worker.fakes import END, FakeEngine, FakeRenderer, FakeUser, char_ids
from tests.rollq_worker.episode.episodes import CALL, END_TEXT, PieceEngine, play_with_fakes, run


def test_a_cut_turn_ends_it():
    trajectory = run(CALL, budget={"max_new_tokens": 5})
    assert (trajectory.stop, trajectory.turns, trajectory.sampled_tokens) == (Stop.LENGTH, 1, 5)
    assert trajectory.events[-2].actions == []


@pytest.mark.parametrize("max_tokens", range(43, 140, 7))
def test_the_token_budget_is_never_exceeded(max_tokens):
    trajectory = run(CALL, budget={"max_tokens": max_tokens})
    assert trajectory.stop is Stop.LENGTH
    assert len(trajectory.tokens) <= max_tokens


@pytest.mark.parametrize(("max_tokens", "context"), [(10, 1000), (1000, 10)])
def test_a_first_prompt_without_room_behind_it_is_no_trajectory(max_tokens, context):
    """A row without a sampled token, graded 0, would say something of the policy."""
    engine = FakeEngine([CALL], context=context)
    with pytest.raises(errors.JobFailure, match=r"the first prompt of \d+ tokens leaves no room"):
        run(CALL, engine=engine, budget={"max_tokens": max_tokens})
    assert engine.requests == []


def test_the_context_of_the_engine_is_a_budget_too():
    assert run(CALL, engine=FakeEngine([CALL], context=90)).stop is Stop.LENGTH


def test_an_interrupted_generation_goes_on_from_its_partial_ids():
    trajectory = run(CALL, "bye", engine=FakeEngine([CALL, "bye"], interrupts=2))
    sampled = [e for e in trajectory.events if isinstance(e, Sampled)]
    assert [e.finish for e in sampled] == [Finish.ABORT, Finish.ABORT, Finish.STOP, Finish.STOP]
    assert (trajectory.turns, trajectory.stop) == (2, Stop.DONE)


def test_a_turn_ended_by_a_stop_string_is_closed_with_the_templates_token():
    class Closes(FakeRenderer):
        def is_end(self, id):
            return id in (END, ord("#"))

        def close(self, message, replies):
            return ord("#")

    engine = PieceEngine(
        ("hm STOP", Finish.STOP), ("hm#", Finish.STOP), ("bye" + END_TEXT, Finish.STOP)
    )
    trajectory = run(
        engine=engine,
        renderer=Closes(),
        user=FakeUser(["hello", "go on", "well?"]),
        sampling={"stop": ["STOP", "#"]},
    )
    assert (trajectory.stop, trajectory.turns) == (Stop.DONE, 3)
    assert "".join(map(chr, trajectory.events[2].ids)) == "#[user]go on[assistant]"
    assert (
        "".join(map(chr, trajectory.events[4].ids)) == "[user]well?[assistant]"
    )  # a close of its own is enough


def test_what_was_sampled_of_a_turn_counts_for_its_least_length():
    engine = PieceEngine(
        ("12345", Finish.ABORT),
        ("", Finish.ABORT),
        ("678", Finish.ABORT),
        ("9" + END_TEXT, Finish.STOP),
    )
    run(
        engine=engine, sampling={"min_new_tokens": 7}, budget={"max_turns": 1, "max_new_tokens": 20}
    )
    assert [(asked["min_new_tokens"], room) for asked, room in engine.asked] == [
        (7, 20),
        (2, 15),
        (2, 15),
        (0, 12),
    ]


@pytest.mark.parametrize(("seed", "sample", "asked"), [(5, 0, 5), (5, 3, 8), (2**63 - 1, 1, 0)])
def test_the_samples_of_a_group_do_not_share_their_seed(seed: int, sample: int, asked: int):
    engine = PieceEngine(("1" + END_TEXT, Finish.STOP))
    run(
        engine=engine,
        sampling={"sampling_seed": seed},
        budget={"max_turns": 1},
        size=4,
        sample=sample,
    )
    assert [sampling["sampling_seed"] for sampling, _ in engine.asked] == [asked]


def test_an_abort_at_a_stop_token_ends_the_turn_unless_the_job_ignores_those():
    engine = PieceEngine(("12" + END_TEXT, Finish.ABORT))
    assert run(engine=engine).stop is Stop.DONE
    engine = PieceEngine(
        ("12" + END_TEXT, Finish.ABORT), ("34" + END_TEXT + "5" + END_TEXT, Finish.LENGTH)
    )
    trajectory = run(engine=engine, sampling={"ignore_eos": True}, budget={"max_turns": 2})
    assert (trajectory.stop, trajectory.turns) == (Stop.LENGTH, 1)
    assert [len(e.ids) for e in trajectory.events if isinstance(e, Sampled)] == [3, 5]


def test_an_abort_at_the_jobs_own_stop_token_ends_the_turn():
    engine = PieceEngine(("12#", Finish.ABORT), ("bye" + END_TEXT, Finish.STOP))
    trajectory = run(
        engine=engine, sampling={"stop_token_ids": [ord("#")]}, user=FakeUser(["hello", "go on"])
    )
    assert (trajectory.stop, trajectory.turns) == (Stop.DONE, 2)


def test_a_turn_under_a_grammar_is_sampled_again_when_it_is_interrupted():
    """The engine would start the grammar again in the middle of the turn."""
    engine = PieceEngine(('{"a', Finish.ABORT), ("", Finish.ABORT), ('{"a": 1}', Finish.STOP))
    trajectory = play_with_fakes(
        engine=engine, sampling={"json_schema": "{}"}, budget={"max_turns": 1}
    )
    assert engine.requests[0] == engine.requests[1] == engine.requests[2]
    assert [(e.ids, e.finish) for e in trajectory.events if isinstance(e, Sampled)] == [
        (char_ids('{"a": 1}'), Finish.STOP)
    ]
