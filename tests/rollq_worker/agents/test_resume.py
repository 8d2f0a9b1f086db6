"""An agent that is started again is answered from the journal, as long as it asks the same."""

import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from rollq.env import Action, Episode, Observation
from rollq.errors import AgentFailure, EnvironmentFailure
from rollq.events import Finish, Sampled, Stop
from rollq.trajectory import Trajectory
from rollq_worker.agents.recorded import AgentDiverged
from rollq_worker.episode.resume import Diverged
from rollq_worker.failures import Drained
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeJournal, FakeUser
from tests.rollq_worker.agents.played import TOOL, Refused, ask, play, post, said, user
from tests.rollq_worker.episode.episodes import PieceEngine
from tests.waiting import until

TEXTS = ["one", "two", "three", "four"]


def with_steps(episode: Episode) -> str:
    """Asks, acts, writes to the user, has a sub-agent, and answers."""
    messages = list(episode.messages)
    messages.append(said(ask(episode, messages)))
    messages.append(user(episode.step("add", {"a": 1}).text))
    sub = said(ask(episode, [user("sub")], tools=[TOOL], temperature=0.5))
    messages.append(said(ask(episode, messages)))
    messages.append(user(episode.respond(f"sub said {sub['content']}").text))
    return str(ask(episode, messages)["content"])


def resumed(agent: Callable[..., Any], played: Trajectory, events: int, engine: Any = None) -> Trajectory:
    return play(agent, engine=engine or FakeEngine(TEXTS), recorded=played.events[:events])


def test_after_any_event_the_episode_is_the_same() -> None:
    played = play(with_steps, *TEXTS)
    assert (played.stop, played.turns, len(played.traces)) == ("done", 4, 2)
    events = played.events[:-1]
    for count in range(1, len(events) + 1):
        sampled = sum(isinstance(event, Sampled) for event in events[:count])
        engine = FakeEngine(TEXTS[sampled:] or ["never"])
        people = FakeUser(("hello", "go on", "more"))
        again = play(with_steps, engine=engine, recorded=events[:count], user=people)
        assert (again.tokens, again.mask, again.reward, again.stop) == (
            played.tokens,
            played.mask,
            played.reward,
            played.stop,
        )
        assert len(engine.requests) == len(TEXTS) - sampled  # the journal answered the others


def test_an_interrupted_turn_goes_on_in_the_next_attempt() -> None:
    journal = FakeJournal(stop=Drained("stopping"), limit=3)

    def agent(episode: Episode) -> None:
        ask(episode, episode.messages)

    with pytest.raises(Drained):
        play(agent, engine=PieceEngine(("on", Finish.ABORT), ("e\0", Finish.STOP)), journal=journal)
    assert [type(event).__name__ for event in journal.events] == ["Acted", "Prompt", "Sampled"]
    engine = PieceEngine(("e\0", Finish.STOP))
    played = play(agent, engine=engine, recorded=journal.events)
    assert played.messages[-1]["content"] == "one"
    assert len(engine.requests) == 1


def test_parallel_requests_are_found_in_any_order() -> None:
    def agent(order: Sequence[int]) -> Callable[[Episode], None]:
        def play_it(episode: Episode) -> None:
            with ThreadPoolExecutor(4) as pool:
                for n in order:
                    pool.submit(ask, episode, [user(f"question {n}")])

        return play_it

    played = play(agent(range(8)), "answer")
    journal = [event for event in played.events[:-1] if type(event).__name__ in ("Acted", "Prompt", "Sampled")]
    engine = FakeEngine(["answer"])
    again = play(agent(random.Random(1).sample(range(8), 8)), engine=engine, recorded=journal)
    assert (again.tokens, len(engine.requests)) == (played.tokens, 0)


def test_a_request_that_was_refused_is_refused_again() -> None:
    def agent(episode: Episode) -> None:
        ask(episode, episode.messages)
        with pytest.raises(Refused, match="context_length_exceeded"):
            ask(episode, [user("x" * 1000)])
        ask(episode, [user("a summary")])

    played = play(agent, "one", "two", budget={"max_tokens": 300})
    assert played.stop == Stop.DONE
    for events in range(1, len(played.events)):
        again = play(agent, "one", "two", recorded=played.events[:events], budget={"max_tokens": 300})
        assert (again.stop, again.turns) == (Stop.DONE, 2)


class TestDivergence:
    def diverges(self, agent: Callable[..., Any], events: int = -1) -> str:
        played = play(with_steps, *TEXTS)
        with pytest.raises(AgentDiverged) as caught:
            resumed(agent, played, events)
        assert isinstance(caught.value, AgentFailure)
        return str(caught.value)

    def test_another_message(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, [*episode.messages[:-1], user(f"hello at {time.time()}")])

        assert re.search(
            r"message 1 of the agent's request was 'user: hello' and is 'user: hello at", self.diverges(agent)
        )

    def test_more_messages(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, [*episode.messages, user("more")])

        assert "had 2 messages and has 3 now" in self.diverges(agent)

    def test_another_parameter(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, episode.messages, temperature=0.1)

        assert "asked for {} and asks for {'temperature': 0.1} now" in self.diverges(agent)

    def test_other_tools(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, episode.messages, tools=[TOOL])

        assert "other tools than before" in self.diverges(agent)

    def test_another_step(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            episode.step("add", {"a": 2})

        assert "step was add({'a': 1}) and is add({'a': 2})" in self.diverges(agent)

    def test_an_earlier_end(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            episode.step("add", {"a": 1})

        said = self.diverges(agent)
        assert "did not ask again for 3 of the turns in its journal" in said
        assert "no clocks, random ids" in said

    def test_an_environment_that_does_something_else(self) -> None:
        class Moody(FakeEnvironment):
            def step(self, action: Action) -> Observation:
                return Observation("other")

        played = play(with_steps, *TEXTS)
        with pytest.raises(Diverged, match=r"Acted\.text was '{\"a\": 1}' and is 'other'"):
            play(with_steps, *TEXTS, recorded=played.events[:-1], environment=Moody())
        assert issubclass(Diverged, EnvironmentFailure)


def test_an_answer_that_was_not_delivered_is_there_for_the_second_request() -> None:
    engine, hung_up = FakeEngine(["one", "two"]), threading.Event()
    generate = engine.generate

    def slow(*args: Any, **options: Any) -> Any:
        assert hung_up.wait(30)
        time.sleep(0.3)  # the endpoint notices that the agent is gone
        return generate(*args, **options)

    engine.generate = slow  # type: ignore[method-assign]

    def agent(episode: Episode) -> None:
        body = {"messages": list(episode.messages)}
        headers = {"Authorization": f"Bearer {episode.api_key}"}
        with pytest.raises(requests.Timeout):
            requests.post(f"{episode.base_url}/chat/completions", json=body, headers=headers, timeout=0.2)
        hung_up.set()
        while len(engine.replies) < 1:
            time.sleep(0.01)
        time.sleep(0.5)
        assert ask(episode, episode.messages)["content"] == "one"

    played = play(agent, engine=engine)
    assert (played.turns, len(engine.requests)) == (1, 1)


def test_a_request_that_is_sent_again_while_it_is_under_way_is_sampled_once() -> None:
    engine, release, begun = FakeEngine(["one", "two"]), threading.Event(), []
    generate, answers = engine.generate, []

    def slow(*args: Any, **options: Any) -> Any:
        begun.append(args)
        assert release.wait(30)
        return generate(*args, **options)

    engine.generate = slow  # type: ignore[method-assign]

    def agent(episode: Episode) -> None:
        body = {"messages": list(episode.messages)}
        headers = {"Authorization": f"Bearer {episode.api_key}"}
        for _ in range(2):
            with pytest.raises(requests.Timeout):
                requests.post(f"{episode.base_url}/chat/completions", json=body, headers=headers, timeout=0.2)
            time.sleep(0.3)  # the endpoint notices that the agent is gone
        assert len(begun) == 1
        # Two at the same time are two: the first takes the one that is under way, the second is sampled.
        threads = [threading.Thread(target=lambda: answers.append(post(episode, body))) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(begun) == 2)
        release.set()
        for thread in threads:
            thread.join()

    played = play(agent, engine=engine)
    assert sorted(answer["choices"][0]["message"]["content"] for answer in answers) == ["one", "two"]
    assert (played.turns, len(begun)) == (2, 2)
