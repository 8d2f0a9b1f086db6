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
from rollq.events import Acted, Finish, Sampled, Stop
from rollq_worker.failures import Diverged
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeUser
from tests.rollq_worker.agents.played import TOOL, Refused, ask, play, post, said, user
from tests.rollq_worker.episode.episodes import PieceEngine
from tests.waiting import until

TEXTS = ["one", "two", "three", "four"]


def with_steps(episode: Episode, responds: bool = True) -> str:
    """Asks, acts, writes to the user, has a sub-agent, and answers."""
    messages = list(episode.messages)
    messages.append(said(ask(episode, messages)))
    messages.append(user(episode.step("add", {"a": 1}).text))
    sub = said(ask(episode, [user("sub")], tools=[TOOL], temperature=0.5))
    messages.append(said(ask(episode, messages)))
    messages.append(
        user(episode.respond(f"sub said {sub['content']}").text if responds else "go on")
    )
    return str(ask(episode, messages)["content"])


def test_after_any_event_the_episode_is_the_same() -> None:
    played = play(with_steps, *TEXTS)
    assert (played.stop, played.turns, len(played.traces)) == ("done", 4, 2)
    opening = played.events[0]
    assert isinstance(opening, Acted) and (opening.action, opening.text) == (
        {"name": "", "arguments": {}},
        "hello",
    )
    events = played.events[:-1]
    for count in range(1, len(events) + 1):
        sampled = sum(isinstance(event, Sampled) for event in events[:count])
        engine = FakeEngine(TEXTS[sampled:] or ["never"])
        people = FakeUser(("hello", "go on", "more"))
        again = play(with_steps, engine=engine, recorded=events[:count], user=people)
        assert (again.tokens, again.mask) == (played.tokens, played.mask)
        assert (again.reward, again.stop) == (played.reward, played.stop)
        assert len(engine.requests) == len(TEXTS) - sampled  # the journal answered the others


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.ABORT])
def test_a_turn_that_was_cut_is_given_as_cut_again(finish: Finish) -> None:
    pieces = [("lo", finish), ("k\0", Finish.STOP)]

    def agent(episode: Episode) -> None:
        got = post(episode, {"messages": [user("?")]})["choices"][0]
        assert (got["finish_reason"], got["message"]["content"]) == ("length", "lo")
        ask(episode, [user("?"), said(got["message"]), user("go on")])

    budget = {"max_new_tokens": 2}  # so that an interrupted turn has no room left
    played = play(agent, engine=PieceEngine(*pieces), budget=budget)
    for count in range(1, len(played.events)):
        recorded = played.events[:count]
        left = pieces[sum(isinstance(event, Sampled) for event in recorded) :]
        again = play(agent, engine=PieceEngine(*left), recorded=recorded, budget=budget)
        assert (again.tokens, again.mask) == (played.tokens, played.mask)


def test_parallel_requests_are_found_in_any_order() -> None:
    def agent(order: Sequence[int]) -> Callable[[Episode], None]:
        def play_it(episode: Episode) -> None:
            with ThreadPoolExecutor(4) as pool:
                for n in order:
                    pool.submit(ask, episode, [user(f"question {n}")])

        return play_it

    played = play(agent(range(8)), "answer")
    journal = [
        event
        for event in played.events[:-1]
        if type(event).__name__ in ("Acted", "Prompt", "Sampled")
    ]
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
        again = play(
            agent, "one", "two", recorded=played.events[:events], budget={"max_tokens": 300}
        )
        assert (again.stop, again.turns) == (Stop.DONE, 2)


DIVERGING: dict[str, tuple[Callable[[Episode], object], str]] = {
    "another message": (
        lambda episode: ask(episode, [*episode.messages[:-1], user("good day")]),
        "message 1 of the agent's request was 'user: hello' and is 'user: good day' now",
    ),
    "more messages": (
        lambda episode: ask(episode, [*episode.messages, user("more")]),
        "the agent's request had 2 messages and has 3 now",
    ),
    "another parameter": (
        lambda episode: ask(episode, episode.messages, temperature=0.1),
        "asked for {} and asks for {'temperature': 0.1} now",
    ),
    "other tools": (
        lambda episode: ask(episode, episode.messages, tools=[TOOL]),
        "has other tools than before",
    ),
    "another step": (
        lambda episode: (ask(episode, episode.messages), episode.step("add", {"a": 2})),
        "the agent's step was add({'a': 1}) and is add({'a': 2}) now",
    ),
    "an earlier end": (
        lambda episode: (ask(episode, episode.messages), episode.step("add", {"a": 1}), None)[-1],
        "did not ask again for 3 of the turns in its journal",
    ),
    "fewer steps": (
        lambda episode: with_steps(episode, responds=False) and None,
        "did not repeat 2 of its steps",
    ),
}


class TestDivergence:
    @pytest.mark.parametrize("name", DIVERGING)
    def test_an_agent_that_does_something_else(self, name: str) -> None:
        played = play(with_steps, *TEXTS)
        agent, what = DIVERGING[name]
        with pytest.raises(Diverged, match=re.escape(what)) as caught:
            play(agent, *TEXTS, recorded=played.events[:-1])
        assert "no clocks, random ids" in str(caught.value)

    @pytest.mark.parametrize(
        ("seen", "what"),
        [
            (Observation("other"), """Acted.text was '{"a": 1}' and is 'other'"""),
            (Observation('{"a": 1}', done=True), "Acted.done was False and is True"),
            (
                Observation('{"a": 1}', reward=0.5),
                "Acted.action was {'name': 'add', 'arguments': {'a': 1}} and is",
            ),
        ],
    )
    def test_an_environment_that_does_something_else(self, seen: Observation, what: str) -> None:
        class Moody(FakeEnvironment):
            def step(self, action: Action) -> Observation:
                return seen

        played = play(with_steps, *TEXTS)
        with pytest.raises(Diverged, match=re.escape(what)):
            play(with_steps, *TEXTS, recorded=played.events[:-1], environment=Moody())


def gives_up(episode: Episode) -> None:
    """Ask, and hang up before there is an answer."""
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    body = {"model": "m", "messages": list(episode.messages)}  # as `ask` writes it, byte for byte
    with pytest.raises(requests.Timeout):
        requests.post(
            f"{episode.base_url}/chat/completions", json=body, headers=headers, timeout=0.2
        )


def test_an_answer_that_was_not_delivered_is_there_for_the_second_request() -> None:
    engine, hung_up = FakeEngine(["one", "two"]), threading.Event()
    generate = engine.generate

    def slow(*args: Any, **options: Any) -> Any:
        assert hung_up.wait(30)
        time.sleep(0.3)  # the endpoint notices that the agent is gone
        return generate(*args, **options)

    engine.generate = slow  # type: ignore[method-assign]

    def agent(episode: Episode) -> None:
        gives_up(episode)
        hung_up.set()
        until(lambda: engine.replies)
        time.sleep(0.5)
        assert ask(episode, episode.messages)["content"] == "one"

    played = play(agent, engine=engine)
    assert (played.turns, len(engine.requests)) == (1, 1)


def test_a_request_that_is_sent_again_while_it_is_under_way_is_sampled_once() -> None:
    engine, release, begun = FakeEngine(["one", "two"]), threading.Event(), []
    generate = engine.generate

    def slow(*args: Any, **options: Any) -> Any:
        begun.append(args)
        assert release.wait(30)
        return generate(*args, **options)

    engine.generate = slow  # type: ignore[method-assign]

    def agent(episode: Episode) -> None:
        for _ in range(2):
            gives_up(episode)
            time.sleep(0.3)  # the endpoint notices that the agent is gone
        assert len(begun) == 1
        # Two at the same time are two: the first takes the one that is under way, the second is
        # sampled.
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(ask, episode, episode.messages) for _ in range(2)]
            until(lambda: len(begun) == 2)
            release.set()
        assert sorted(answer.result()["content"] for answer in answers) == ["one", "two"]

    played = play(agent, engine=engine)
    assert (played.turns, len(begun)) == (2, 2)
