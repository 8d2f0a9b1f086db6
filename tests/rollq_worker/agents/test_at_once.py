"""Agents that ask several things at once, when one of them fails or the worker ends."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollq.env import Action, Episode, Observation
from rollq.errors import EngineFailure
from rollq.events import Event, Finish, Observed, Prompt, Sampled, Stop
from rollq_worker.failures import Drained
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeJournal
from rollq_worker.protocols import SampleRequest
from rollq_worker.remote.waiting import wait
from tests.rollq_worker.agents.played import TOOL, Refused, ask, play, text_of, user
from tests.rollq_worker.episode.episodes import PieceEngine

CALL = '{"name": "look", "arguments": {}}'


@pytest.fixture
def _hurried() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hurried")
def test_calls_have_the_same_ids_when_the_episode_is_resumed() -> None:
    asked = [user(f"question {n}") for n in range(40)]

    def agent(episode: Episode) -> None:
        with ThreadPoolExecutor(4) as pool:
            replies = pool.map(lambda one: ask(episode, [one], tools=[TOOL]), asked)
        given.append([reply["tool_calls"][0]["id"] for reply in replies])

    given: list[list[str]] = []
    played = play(agent, CALL, budget={"max_turns": 50})
    journal = [event for event in played.events if isinstance(event, Prompt | Sampled)]
    play(agent, "never", recorded=journal, budget={"max_turns": 50})
    assert given[0] == given[1]
    assert len(set(given[0])) == len(asked)


def test_two_calls_of_a_turn_never_share_an_id() -> None:
    calls = '[{"name": "look", "arguments": {}, "id": "call_1"}, {"name": "look", "arguments": {}}]'

    def agent(episode: Episode) -> None:
        reply = ask(episode, episode.messages, tools=[TOOL])
        assert len({call["id"] for call in reply["tool_calls"]}) == 2
        assert (
            len(ask(episode, [user("one")], tools=[TOOL], parallel_tool_calls=False)["tool_calls"])
            == 1
        )

    played = play(agent, calls)
    assert [event.extra_calls for event in played.events if isinstance(event, Observed)] == [0, 1]


def asks_two(episode: Episode) -> None:
    """An agent that asks two things at once."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: ask(episode, [user(text)]), ("first", "second")))


def test_a_turn_that_a_kill_cut_off_is_not_counted() -> None:
    played = play(asks_two, "answer", budget={"max_turns": 2})
    assert (played.stop, played.turns) == (Stop.DONE, 2)
    second: list[Event] = [event for event in played.events if isinstance(event, Prompt)]
    second += [event for event in played.events if isinstance(event, Sampled) and event.turn == 1]
    engine = FakeEngine(["answer"])
    again = play(asks_two, engine=engine, recorded=second, budget={"max_turns": 2})
    assert (again.stop, again.turns, len(engine.requests)) == (Stop.DONE, 2, 1)
    assert [event.turn for event in again.events if isinstance(event, Sampled)] == [1, 2]


def test_a_step_is_refused_when_a_request_fails_before_it() -> None:
    asking, stepping, left = threading.Event(), threading.Event(), threading.Event()

    class Slow(FakeEnvironment):
        def step(self, action: Action) -> Observation:
            stepping.set()
            assert left.wait(30)
            return super().step(action)

    class Broken(FakeEngine):
        def generate(self, *args: Any, **options: Any) -> Any:
            asking.set()
            assert stepping.wait(30)
            raise EngineFailure("the engine is broken")

    refused: list[Exception] = []

    def agent(episode: Episode) -> None:
        def fail() -> None:
            with pytest.raises(Refused):
                ask(episode, episode.messages)
            left.set()

        def second() -> None:
            assert stepping.wait(30)
            try:
                episode.step("add", {"a": 2})
            except Exception as e:
                refused.append(e)

        threads = [threading.Thread(target=target) for target in (fail, second)]
        for thread in threads:
            thread.start()
        assert asking.wait(30)
        episode.step("add", {"a": 1})
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    with pytest.raises(EngineFailure, match="the engine is broken"):
        play(agent, engine=Broken(["hi"]), environment=Slow())
    assert "the episode is over" in str(refused[0])


def test_a_request_that_fails_ends_the_others() -> None:
    together, ended = threading.Barrier(2), threading.Event()

    class Half(FakeEngine):
        def generate(self, request: SampleRequest) -> Any:
            if together.wait(30):
                raise EngineFailure("the engine is broken")
            try:
                wait(30.0, request.check)  # as while an engine is away
            finally:
                ended.set()

    with pytest.raises(EngineFailure, match="the engine is broken"):
        play(asks_two, engine=Half([""]))
    assert ended.wait(5)


def test_a_worker_that_stops_records_what_all_requests_sampled() -> None:
    together = threading.Barrier(2)

    class Aborted(PieceEngine):
        def generate(self, *args: Any, **options: Any) -> Any:
            late = together.wait(30)
            if late:
                time.sleep(0.4)  # the other request has found that the worker stops
            return super().generate(*args, **options)

    class Stopping(FakeJournal):
        def check(self) -> None:
            if sum(isinstance(event, Sampled) for event in self.events):
                raise Drained("stopping")

    journal = Stopping()
    with pytest.raises(Drained):
        play(asks_two, engine=Aborted(("on", Finish.ABORT), ("tw", Finish.ABORT)), journal=journal)
    assert sorted(text_of(e.ids) for e in journal.events if isinstance(e, Sampled)) == ["on", "tw"]
