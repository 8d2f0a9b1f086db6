"""Token checks: what holds passes, and each breach is found and blamed on the right party.

Lengths, logprobs and version spans are checked where the engine's reply is read:
tests/rollq_worker/engine.
"""

from __future__ import annotations

import pickle
from array import array
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import ContractError, EngineBreach, FailureClass, JobBreach, RolloutFailure
from rollq.events import Event, Finish, Observed, Prompt, Sampled, VersionSpan
from rollq.job import History, Job
from rollq_worker.episode import loop
from rollq_worker.episode.token_checks import TokenChecks
from rollq_worker.fakes import FakeEngine, FakeRenderer, FakeUser
from rollq_worker.protocols import Generated, SampleRequest
from tests.rollq_worker.episode.episodes import play_with_fakes

END, OTHER_END, TEMPLATE_END = 9, 8, 7
VOCABULARY = 100
PADDING = 105


class Ends(FakeRenderer):
    """Turns are sampled to END; the template has a token of its own for turns that are over
    (gpt-oss).
    """

    stop_ids = (END,)
    vocab_size = VOCABULARY

    def is_end(self, id: int) -> bool:
        return id in (END, TEMPLATE_END)


def job(**changes: Any) -> Job:
    return Job(run="r", group="g", env="fake", task=0, **changes)


def checks_of(**changes: Any) -> TokenChecks:
    return TokenChecks(job(**changes), Ends())


def prompt(*ids: int) -> Prompt:
    return Prompt(ids=array("I", ids or (1, 2, 3)), messages=[], tools=[])


def sampled(turn: int, *ids: int, finish: Finish = Finish.STOP, **changes: Any) -> Sampled:
    whole = Sampled(
        turn=turn,
        ids=array("I", ids),
        logprobs=array("f", [-0.5] * len(ids)),
        versions=[VersionSpan("v1", 0, len(ids))],
        finish=finish,
    )
    return replace(whole, **changes)


def observed(turn: int, *ids: int) -> Observed:
    return Observed(turn=turn, message={}, actions=[], replies=[], ids=array("I", ids))


def follow(checks: TokenChecks, *events: Event) -> TokenChecks:
    for event in events:
        checks.check_event(event)
    return checks


GOOD: dict[str, tuple[dict[str, Any], list[Event]]] = {
    "two turns": (
        {},
        [prompt(), sampled(0, 5, END), observed(0, 4, 6), sampled(1, 5, END), observed(1)],
    ),
    "an interrupted turn": (
        {},
        [
            prompt(),
            sampled(0, 5, finish=Finish.ABORT),
            sampled(0, 6, END),
            observed(0, 4),
            sampled(1, END),
        ],
    ),
    "interrupted after its last token": (
        {},
        [prompt(), sampled(0, 5, END, finish=Finish.ABORT), observed(0, 4)],
    ),
    "a stop token at the very limit": (
        {},
        [prompt(), sampled(0, 5, END, finish=Finish.LENGTH), observed(0, 4)],
    ),
    "cut by its length": ({}, [prompt(), sampled(0, 5, 6, finish=Finish.LENGTH), observed(0)]),
    "a padding id": ({}, [prompt(), sampled(0, PADDING, END), observed(0, 4)]),
    "the job's own stop token": (
        {"sampling": {"stop_token_ids": [OTHER_END]}},
        [prompt(), sampled(0, 5, OTHER_END), observed(0, END, 4), sampled(1, END)],
    ),
    "ended as the template ends it": (
        {"sampling": {"stop_token_ids": [TEMPLATE_END]}},
        [prompt(), sampled(0, 5, TEMPLATE_END), observed(0, 4), sampled(1, END)],
    ),
    "closed as the template does": (
        {"sampling": {"stop": ["x"]}},
        [prompt(), sampled(0, 5), observed(0, TEMPLATE_END, 4)],
    ),
    "a stop string": (
        {"sampling": {"stop": ["x"]}},
        [prompt(), sampled(0, 5, 6), observed(0, END, 4)],
    ),
    "a grammar": ({"sampling": {"regex": "a"}}, [prompt(), sampled(0, 5), observed(0, END, 4)]),
    "eos ignored": (
        {"sampling": {"ignore_eos": True}},
        [
            prompt(),
            sampled(0, END, 5, END, finish=Finish.ABORT),
            sampled(0, 5, finish=Finish.LENGTH),
        ],
    ),
    "history rewritten": (
        {},
        [prompt(), sampled(0, 5, END), observed(0), prompt(1, 2), sampled(1, 5, END), observed(1)],
    ),
    "older weights again": (
        {},
        [
            prompt(),
            sampled(0, 5, 6, END, versions=[VersionSpan("v2", 0, 1), VersionSpan("v1", 1, 3)]),
            observed(0, 4),
            sampled(1, 5, END, versions=[VersionSpan("v2", 0, 2)]),
        ],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_holds_passes(name: str) -> None:
    changes, events = GOOD[name]
    follow(checks_of(**changes), *events)


OPEN = [prompt()]
ENDED = [prompt(), sampled(0, 5, END)]
BROKEN: dict[str, tuple[list[Event], Event, type[RolloutFailure]]] = {
    "I3 an empty prompt": ([], replace(prompt(), ids=array("I")), JobBreach),
    "I3 a prompt after a bridge": ([*ENDED, observed(0, 4)], prompt(), JobBreach),
    "I3 sampled on after the end": (ENDED, sampled(0, END), JobBreach),
    "I9 answered before anything was sampled": (OPEN, observed(0, END, 4), JobBreach),
    "I4 stop without a stop token": (OPEN, sampled(0, 5, 6), EngineBreach),
    "I4 sampled after an abort at a stop token": (
        [*OPEN, sampled(0, END, finish=Finish.ABORT)],
        sampled(0, END),
        JobBreach,
    ),
    "I9 another turn answered": (ENDED, observed(1, 4), JobBreach),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_breach_is_blamed_on_who_made_it(name: str) -> None:
    before, event, breach = BROKEN[name]
    checks = follow(checks_of(), *before)
    with pytest.raises(ContractError, match="r/g/0, turn") as caught:
        checks.check_event(event)
    assert type(caught.value) is breach
    assert isinstance(caught.value, RolloutFailure)
    assert caught.value.failure is (
        FailureClass.ENGINE if breach is EngineBreach else FailureClass.JOB
    )
    assert pickle.loads(pickle.dumps(caught.value)).failure is caught.value.failure


def test_nothing_is_sent_behind_a_turn_that_has_ended() -> None:
    with pytest.raises(JobBreach, match="nothing may be sampled after Sampled"):
        follow(checks_of(), *ENDED).check_request(array("I", [1, 2, 3, 5, END]))


@st.composite
def episodes(draw: st.DrawFn) -> list[Event]:
    """What a correct loop may record, without rewritten history."""
    ids = st.lists(st.integers(10, VOCABULARY - 1), min_size=1, max_size=4)
    events: list[Event] = [prompt(*draw(ids))]
    for turn in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 2))):
            events.append(sampled(turn, *draw(ids), finish=Finish.ABORT))
        events.append(sampled(turn, *draw(ids), END, finish=draw(st.sampled_from(Finish))))
        events.append(observed(turn, *draw(ids)))
    return events


BREAKS: dict[str, tuple[type, Any]] = {
    # A change of an event that breaks the invariant, and is rollq's fault but for I4.
    "I3 no prompt": (Prompt, lambda e: []),
    "I3 two prompts": (Prompt, lambda e: [e, e]),
    "I3 a turn without an answer": (Observed, lambda e: [sampled(e.turn + 1, END)]),
    "I3 an answer without a bridge": (
        Observed,
        lambda e: [replace(e, ids=array("I")), sampled(e.turn + 1, END)],
    ),
    "I4 stop after any token": (Sampled, lambda e: [sampled(e.turn, 5)]),
    "I4 on after a stop token": (
        Sampled,
        lambda e: [sampled(e.turn, END, 5, finish=Finish.LENGTH)],
    ),
    "I5 a bridge after a cut turn": (Observed, lambda e: [replace(e, ids=array("I", [4, END]))]),
    "I8 a prompt beyond the vocabulary": (
        Prompt,
        lambda e: [replace(e, ids=array("I", [VOCABULARY]))],
    ),
    "I8 a bridge beyond the vocabulary": (
        Observed,
        lambda e: [replace(e, ids=array("I", [4, VOCABULARY]))],
    ),
    "I9 a turn left out": (Sampled, lambda e: [replace(e, turn=e.turn + 1)]),
    "I9 a turn answered twice": (Observed, lambda e: [e, e]),
}


@pytest.mark.parametrize("name", BREAKS)
@given(events=episodes(), data=st.data())
def test_one_thing_wrong_anywhere_is_found(
    name: str, events: list[Event], data: st.DataObject
) -> None:
    follow(checks_of(), *events)
    kind, change = BREAKS[name]
    at = data.draw(
        st.sampled_from([n for n, event in enumerate(events) if isinstance(event, kind)])
    )
    if name.startswith("I5"):  # in front of it a turn that was cut
        last = events[at - 1]
        assert isinstance(last, Sampled)
        events[at - 1] = sampled(last.turn, *last.ids[:-1], finish=Finish.LENGTH)
    with pytest.raises(EngineBreach if name.startswith("I4") else JobBreach):
        follow(checks_of(), *events[:at], *change(events[at]), *events[at + 1 :])


@given(events=episodes(), data=st.data())
def test_anything_else_sent_than_what_was_recorded_is_found(
    events: list[Event], data: st.DataObject
) -> None:
    """I1. By length and last token: an array that is only ever appended to has no other way to
    differ.
    """
    checks = follow(checks_of(), *events)
    ids = [token for event in events for token in event.ids]  # type: ignore[union-attr]
    checks.check_request(array("I", ids))
    other = data.draw(st.integers(0, VOCABULARY).filter(lambda token: token != ids[-1]))
    for wrong in (ids[:-1], [*ids, other], [*ids[:-1], other], ids[1:], []):
        with pytest.raises(JobBreach, match="about to be sent"):
            checks.check_request(array("I", wrong))


class Cutting(FakeEngine):
    """Ends turns at a stop string, if the job has one."""

    def generate(self, request: SampleRequest) -> Generated:
        got = super().generate(request)
        if "stop" in request.sampling and got.finish is Finish.STOP and len(got.ids) > 1:
            self.replies[-1] = short = got.ids[:-1]
            spans = [VersionSpan(self.version, 0, len(short))]
            return replace(got, ids=short, logprobs=got.logprobs[:-1], versions=spans)
        return got


@given(
    sampling=st.sampled_from([{}, {"stop": "x"}, {"json_schema": "{}"}, {"stop_token_ids": [0]}]),
    history=st.sampled_from(History),
    texts=st.lists(
        st.sampled_from(['{"name": "add", "arguments": {}}', "{bad", "hm", "bye, bye"]), min_size=1
    ),
    interrupts=st.integers(0, 4),
    max_new_tokens=st.integers(1, 40),
    max_turns=st.integers(1, 6),
)
def test_whatever_the_loop_records_holds(
    sampling: dict[str, Any],
    history: History,
    texts: list[str],
    interrupts: int,
    max_new_tokens: int,
    max_turns: int,
) -> None:
    engine, user = Cutting(texts, interrupts=interrupts), FakeUser(["hello", "and?", "and?"])
    budget = {"max_new_tokens": max_new_tokens, "max_turns": max_turns}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "ABORT_PAUSE_S", 0)
        trajectory = play_with_fakes(
            engine=engine, user=user, budget=budget, sampling=sampling, history=history
        )
    checks = TokenChecks(trajectory.job, FakeRenderer())
    requests = (
        ids for ids, _ in groupby(engine.requests)
    )  # under a grammar an interrupted turn is asked for again
    for event in trajectory.events:
        if isinstance(event, Sampled):
            checks.check_request(next(requests))
        checks.check_event(event)
    assert checks.length == trajectory.traces[-1]


def test_the_history_is_never_read_again() -> None:
    class Glanced:
        """Ids that may only be counted, and looked at at their end."""

        def __len__(self) -> int:
            return 1_000_006

        def __getitem__(self, index: int) -> int:
            assert index == -1
            return 4

    checks = follow(
        checks_of(), prompt(*[1] * 1_000_000), sampled(0, 5, 5, 5, END), observed(0, 4, 4)
    )
    checks.check_request(Glanced())  # type: ignore[arg-type]
    assert not [value for value in vars(checks).values() if isinstance(value, list | array)]
