"""Resume: an episode that is interrupted anywhere ends as if it had not been, and nothing is asked
twice.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.env import Action, Observation
from rollq.errors import JobFailure
from rollq.events import Observed, Prompt, Sampled, Stop
from rollq.job import History
from rollq.wire.events import decode_event, encode_event
from rollq_worker.failures import Diverged
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeJournal, FakeUser
from tests.rollq_worker.episode.episodes import play_with_fakes

CALL = '{"name": "add", "arguments": {"a": [1, 2.5, null]}}'
TEXTS = (CALL, "and now?", "{oops", CALL, "one more", "bye")
LINES = ("hello", "go on", "more")


def run(recorded=(), *, user=None, **options):
    return play_with_fakes(*TEXTS, user=user or FakeUser(LINES), recorded=recorded, **options)


def read_back(events):
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


class CountingUser(FakeUser):
    """Counts how often it is asked."""

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
    recorded = read_back(whole.events[:cut])
    turns = [
        event.turn for event in recorded if isinstance(event, Sampled) and event.finish != "abort"
    ]
    engine = FakeEngine(TEXTS[len(turns) :] or ["never"])
    partial = [event for event in recorded if isinstance(event, Sampled)]
    open_turn = bool(partial) and partial[-1].finish == "abort" and recorded[-1] is partial[-1]
    if open_turn:  # the engine goes on with what is left of the interrupted turn
        said = sum(len(event.ids) for event in partial if event.turn == partial[-1].turn)
        engine = FakeEngine([TEXTS[len(turns)][said:], *TEXTS[len(turns) + 1 :]])
    user, journal = CountingUser(LINES), FakeJournal()
    again = run(recorded, engine=engine, user=user, journal=journal)
    assert seen(again) == seen(whole)
    replies = sum(
        isinstance(e, Observed) and any(a["name"] == "respond" for a in e.actions) for e in recorded
    )
    assert user.asked == 1 + 3 - replies - bool(recorded)
    assert len(journal.events) == len(again.events) - 1 - cut  # nothing is journaled twice


class Fickle(FakeEnvironment):
    def step(self, action: Action) -> Observation:
        return Observation("something else")


@pytest.mark.parametrize(
    "environment",
    [Fickle(), FakeEnvironment(system_prompt="another policy")],
    ids=["observation", "prompt"],
)
def test_a_replay_that_diverges_is_the_environments_failure(environment):
    whole = run()
    with pytest.raises(Diverged):
        run(read_back(whole.events[:4]), environment=environment)


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_journal_that_cannot_have_been_is_refused(cut):
    events = read_back(run().events[:-1])
    del events[cut]
    if cut < len(events):
        with pytest.raises(Diverged):
            run(events)


def test_sampled_tokens_of_another_turn_are_refused():
    prompt, sampled, *_ = read_back(run().events)
    assert isinstance(prompt, Prompt)
    with pytest.raises(Diverged, match="turn 5"):
        run([prompt, replace(sampled, turn=5)])


ASK = '{"name": "ask", "arguments": {"question": "%s"}}'


class Consulting(FakeEnvironment):
    """Asks its user within a tool call, and changes the spelling of what the user says."""

    def step(self, action: Action) -> Observation:
        assert self.user is not None
        if action.name == "ask":
            self.actions.append(action)
            said = [self.user.reply(action.arguments["question"]) for _ in range(2)]
            return Observation(" / ".join(said).upper())
        seen = super().step(action)
        return replace(seen, text=f"({seen.text})")


TALK = (ASK % "who?", CALL, "and now?", f"[{ASK % 'a'}, {ASK % 'b'}]", "bye")
WORDS = ("hello", *(f"word {n}" for n in range(20)))


def consult(recorded=(), texts=TALK, user=None, environment=None):
    return play_with_fakes(
        *texts,
        budget={"max_turns": 5},
        agent_args={"calls": "all"},
        environment=environment or Consulting(),
        user=user or CountingUser(WORDS),
        recorded=recorded,
    )


@pytest.mark.parametrize("cut", range(12))
def test_a_user_who_is_asked_within_tool_calls_is_not_asked_again(cut):
    whole = consult()
    assert [len(e.actions) for e in whole.events if isinstance(e, Observed)] == [1, 1, 1, 2, 1]
    assert whole.messages[3]["content"] == "WORD 0 / WORD 1"
    recorded = read_back(whole.events[:cut])
    turns = sum(isinstance(event, Sampled) for event in recorded)
    user = CountingUser(WORDS)
    again = consult(recorded, TALK[turns:] or ("never",), user)
    assert seen(again) == seen(whole)
    answered = sum(isinstance(event, Observed) for event in recorded)
    assert user.asked == 9 - [0, 1, 3, 3, 4, 8, 9][answered + bool(recorded)]
    assert len(user.heard) == 8  # asked now, or recalled


def test_an_environment_that_asks_more_or_less_than_it_did_has_diverged():
    recorded = read_back(consult().events[:3])
    user = CountingUser(WORDS)

    class Curious(Consulting):
        def step(self, action: Action) -> Observation:
            assert self.user is not None
            self.user.reply("once more")
            return super().step(action)

    with pytest.raises(Diverged, match="asked more"):
        consult(recorded, user=user, environment=Curious())
    assert user.asked == 0

    class Incurious(Consulting):
        def step(self, action: Action) -> Observation:
            assert self.user is not None
            return Observation(self.user.reply("?").upper() + " / WORD 1")

    with pytest.raises(Diverged, match="actions"):
        consult(recorded, user=user, environment=Incurious())


def test_an_environment_that_answers_for_its_user():
    class Answers(FakeEnvironment):
        def step(self, action: Action) -> Observation:
            return (
                Observation("noted", done=len(self.actions) > 2)
                if action.name == "respond"
                else super().step(action)
            )

    texts = ("hm", CALL, "hm", CALL, CALL, "bye")
    whole = consult((), texts, environment=Answers())
    for cut in range(len(whole.events)):
        recorded = read_back(whole.events[:cut])
        turns = sum(isinstance(event, Sampled) for event in recorded)
        assert seen(consult(recorded, texts[turns:] or ("never",), environment=Answers())) == seen(
            whole
        )


@pytest.mark.parametrize("history", list(History))
@pytest.mark.parametrize("context", [60, 200, 330, 1 << 20])
def test_a_successor_with_another_context_does_not_diverge(history, context):
    """Whether another turn followed is taken from the journal, not worked out again."""

    def again(recorded, engine):
        return run(recorded, engine=engine, history=history)

    whole = again((), FakeEngine(TEXTS, context=context))
    for cut in range(1, len(whole.events)):
        recorded = read_back(whole.events[:cut])
        ended = cut == len(whole.events) - 1
        for other in (1, 1 << 20):
            if not any(isinstance(event, Sampled) for event in recorded) and other == 1:
                with pytest.raises(JobFailure, match="leaves no room"):
                    again(recorded, FakeEngine(["bye"], context=other))
                continue
            found = again(recorded, FakeEngine(["bye"], context=other))
            assert read_back(found.events[:cut]) == recorded
            if ended and not (history is History.TEMPLATE and whole.stop is Stop.LENGTH):
                assert seen(found) == seen(whole)
