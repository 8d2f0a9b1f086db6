"""Routed experts of an episode: each turn asks for what is new to the engine, and each token gets
its row.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from rollq.events import Event, Finish, Sampled
from rollq.trajectory import Trajectory
from rollq.wire.routed_experts import routed_experts
from rollq_worker.fakes import FakeEngine, FakeJournal, FakeUser, fake_experts
from rollq_worker.protocols import Generated, Routing, SampleRequest
from tests.rollq.routed_experts import ASKED, SHAPE
from tests.rollq_worker.episode.episodes import CALL, play_with_fakes

LINES = FakeUser(["hello", "go on", "more"]).lines


class Asked(FakeEngine):
    """Notes from where on it was asked for routed experts, and how much it had read by then."""

    def generate(self, request: SampleRequest) -> Generated:
        self.starts = [*getattr(self, "starts", []), request.routing and request.routing.start]
        return super().generate(request)


def play(
    engine: FakeEngine, journal: FakeJournal, recorded: Sequence[Event] = (), **job: Any
) -> Trajectory:
    user = FakeUser(list(LINES))
    options = {"engine": engine, "journal": journal, "user": user, "recorded": recorded, **job}
    return play_with_fakes(CALL, "words", **options, routed_experts=ASKED)


def check(trajectory: Trajectory) -> None:
    """Every token has its row, but for the last one of each trace."""
    joined, at = routed_experts(trajectory).data, 0
    for length in trajectory.traces:
        ids = trajectory.tokens[at : at + length]
        rows = fake_experts(ids, Routing(start=0, shape=SHAPE)).data + SHAPE.filler()
        assert joined[at * SHAPE.row_bytes : (at + length) * SHAPE.row_bytes] == rows
        at += length


@pytest.mark.parametrize("interrupts", [0, 1, 3])
@pytest.mark.parametrize("history", ["keep", "template"])
def test_every_token_has_its_row(interrupts: int, history: str) -> None:
    engine, journal = Asked([CALL, "words"], interrupts=interrupts), FakeJournal()
    trajectory = play(engine, journal, history=history)
    assert len(trajectory.traces) == (1 if history == "keep" else 3)
    check(trajectory)


def test_each_turn_asks_from_the_last_sampled_token_on() -> None:
    engine, journal = Asked([CALL, "words"]), FakeJournal()
    play(engine, journal)
    sent, replied = engine.requests, engine.replies
    ends = [len(before) + len(said) - 1 for before, said in zip(sent, replied, strict=True)]
    assert engine.starts == [0, *ends[:-1]]


def test_a_job_that_does_not_ask_leaves_the_engine_alone() -> None:
    engine, journal = Asked([CALL]), FakeJournal()
    play_with_fakes(CALL, engine=engine, journal=journal, budget={"max_turns": 2})
    assert engine.starts == [None, None]
    assert all(event.experts is None for event in journal.events if isinstance(event, Sampled))


@pytest.mark.parametrize("cut", range(2, 7))
def test_a_resumed_episode_goes_on_behind_its_rows(cut: int) -> None:
    whole = play(Asked([CALL, "words"]), FakeJournal())
    kept = list(whole.events[:cut])
    engine = Asked([CALL, "words"], _sampled=sum(isinstance(event, Sampled) for event in kept))
    again = play(engine, FakeJournal(), recorded=kept)
    assert again.tokens == whole.tokens and len(engine.starts) == len(engine.requests)
    check(again)


def test_a_piece_that_is_not_kept_leaves_no_rows() -> None:
    engine, journal = Asked(["words"], interrupts=1), FakeJournal()
    trajectory = play(engine, journal, sampling={"regex": "w.*"})
    assert not any(
        event.finish is Finish.ABORT for event in trajectory.events if hasattr(event, "finish")
    )
    check(trajectory)
