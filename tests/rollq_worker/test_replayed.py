"""Resume: an episode cut anywhere and played again ends as if nothing had happened, with nothing asked twice."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.codec import decode_event, encode_event
from rollq.job import Budget, Job
from rollq.trajectory import Observed, Prompt, Sampled
from rollq_worker.episode import play
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeJournal, FakeRenderer, FakeUser
from rollq_worker.protocols import Action, Observation
from rollq_worker.replayed import Diverged

CALL = '{"name": "add", "arguments": {"a": [1, 2.5, null]}}'
TEXTS = (CALL, "and now?", "{oops", CALL, "one more", "bye")
LINES = ("hello", "go on", "more")


def run(recorded=(), *, engine=None, user=None, environment=None, journal=None, budget=None):
    return play(
        Job(run="r", group="g", env="fake", task=0, budget=budget or Budget()),
        engine=engine or FakeEngine(TEXTS),
        renderer=FakeRenderer(),
        environment=environment or FakeEnvironment(),
        user=user or FakeUser(LINES),
        journal=journal or FakeJournal(),
        recorded=recorded,
    )


def wired(events):
    """As they come back from Redis."""
    return [decode_event(encode_event(event, "r/g/0"), "r/g/0") for event in events]


def seen(trajectory):
    return (
        list(trajectory.tokens),
        trajectory.mask,
        list(trajectory.logprobs),
        trajectory.messages,
        trajectory.stop,
        trajectory.reward,
    )


class Counting(FakeUser):
    """Goes on from what it was made to recall, and counts what it is asked."""

    asked = 0

    def open(self) -> str:
        self.asked += 1
        return super().open()

    def reply(self, message: str) -> str:
        self.asked += 1
        return super().reply(message)


@given(st.data(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_cut_anywhere_changes_nothing(data, interrupts):
    whole = run(engine=FakeEngine(TEXTS, interrupts=interrupts))
    cut = data.draw(st.integers(0, len(whole.events) - 1))
    recorded = wired(whole.events[:cut])
    turns = [event.turn for event in recorded if isinstance(event, Sampled) and event.finish != "abort"]
    engine = FakeEngine(TEXTS[len(turns) :] or ["never"])
    partial = [event for event in recorded if isinstance(event, Sampled)]
    open_turn = bool(partial) and partial[-1].finish == "abort" and recorded[-1] is partial[-1]
    if open_turn:  # the engine goes on with what is left of the interrupted turn
        said = sum(len(event.ids) for event in partial if event.turn == partial[-1].turn)
        engine = FakeEngine([TEXTS[len(turns)][said:], *TEXTS[len(turns) + 1 :]])
    user, journal = Counting(LINES), FakeJournal()
    again = run(recorded, engine=engine, user=user, journal=journal)
    assert seen(again) == seen(whole)
    replies = sum(isinstance(e, Observed) and any(a["name"] == "respond" for a in e.actions) for e in recorded)
    assert user.asked == 1 + 3 - replies - bool(recorded)
    assert len(journal.events) == len(again.events) - 1 - cut  # nothing is journaled twice


def test_a_finished_journal_needs_no_engine():
    whole = run()
    engine = FakeEngine(["never"])
    again = run(wired(whole.events[:-1]), engine=engine)
    assert (seen(again), engine.requests) == (seen(whole), [])


class Fickle(FakeEnvironment):
    def step(self, action: Action) -> Observation:
        return Observation("something else")


class OtherPolicy(FakeEnvironment):
    system_prompt = "another policy"

    def __init__(self) -> None:
        super().__init__(system_prompt="another policy")


@pytest.mark.parametrize("environment", [Fickle(), OtherPolicy()], ids=["observation", "prompt"])
def test_a_replay_that_diverges_is_the_environments_failure(environment):
    whole = run()
    with pytest.raises(Diverged):
        run(wired(whole.events[:4]), environment=environment)


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_journal_that_cannot_have_been_is_refused(cut):
    events = wired(run().events[:-1])
    del events[cut]
    if cut < len(events):
        with pytest.raises(Diverged):
            run(events)


def test_sampled_tokens_of_another_turn_are_refused():
    prompt, sampled, *_ = wired(run().events)
    assert isinstance(prompt, Prompt)
    with pytest.raises(Diverged, match="turn 5"):
        run([prompt, replace(sampled, turn=5)])
