"""Agent programs on a server behind a recording proxy: the openai package, sub-agents,
interruptions, resumes.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollq.env import Episode
from rollq.events import Event, Sampled
from rollq.job import Budget, Job
from rollq.trajectory import Trajectory
from rollq_worker.agents.endpoint import AgentEndpoint
from rollq_worker.agents.play import play_with_agent
from rollq_worker.agents.programs.running import AgentThread
from rollq_worker.engine.client import EngineClient
from rollq_worker.episode.loop import play as play_own_loop
from rollq_worker.failures import Drained
from rollq_worker.fakes import FakeEnvironment, FakeJournal, FakeUser
from rollq_worker.tokens.selfcheck.check import checked_renderer
from tests.contract.conftest import Server
from tests.recorder import Recorder, recording

Conversation = list[dict[str, Any]]


class Played:
    """A server behind a proxy, and agents that play on it."""

    def __init__(self, server: Server, proxy: Recorder) -> None:
        self.server, self.proxy = server, proxy
        self.endpoint = AgentEndpoint()
        self.engine = EngineClient(proxy.url, vocab_size=server.tokenizer.vocab_size)

    def play(
        self,
        agent: Callable[[Episode], Any],
        recorded: Sequence[Event] = (),
        journal: FakeJournal | None = None,
        **budget: Any,
    ) -> Trajectory:
        limits = Budget(
            **{
                "max_turns": 30,
                "max_tokens": 3000,
                "max_new_tokens": 40,
                "deadline_s": 300,
                **budget,
            }
        )
        return play_with_agent(
            Job(
                run="r",
                group="g",
                env="fake",
                split="train",
                task=0,
                agent="program",
                budget=limits,
            ),
            lambda given, on_end: AgentThread("program", agent, given, {}, on_end),
            self.endpoint,
            engine=self.engine,
            renderer_of=lambda tools, **_: checked_renderer(self.server.tokenizer, tools),
            environment=FakeEnvironment(),
            user=FakeUser(("Where is my order?", "Are you sure?", "Thank you.")),
            journal=journal or FakeJournal(),
            recorded=recorded,
        )

    def check(self, played: Trajectory, *, calls: int | None = None) -> None:
        """Each reply that the proxy saw is trained in one segment, right behind what was sent for
        it.
        """
        seen = [
            call
            for call in self.proxy.calls()
            if call["status"] == 200 and call["reply"]["output_ids"]
        ]
        assert len(seen) == (calls or len(seen))
        rows = [
            (list(row.prompt_ids + row.response_ids), bytes(len(row.prompt_ids)) + row.mask)
            for row in played.segments()
        ]
        logprobs = [
            list(bytes(len(row.prompt_ids))) + row.logprobs.tolist() for row in played.segments()
        ]
        for call in seen:
            sent, said = call["request"]["input_ids"], call["reply"]["output_ids"]
            end = len(sent) + len(said)
            homes = [
                n
                for n, (ids, mask) in enumerate(rows)
                if ids[:end] == sent + said and all(mask[len(sent) : end])
            ]
            assert len(homes) >= 1
            reported = [entry[0] for entry in call["reply"]["meta_info"]["output_token_logprobs"]]
            assert any(
                logprobs[n][len(sent) : end] == pytest.approx(reported, abs=1e-6) for n in homes
            )
        assert sum(len(call["reply"]["output_ids"]) for call in seen) == played.sampled_tokens


@pytest.fixture
def played(server: Server, tmp_path: Path) -> Iterator[Played]:
    with recording(server.url, tmp_path / "calls.jsonl") as proxy:
        found = Played(server, proxy)
        yield found
        found.engine.close()
        found.endpoint.close()


def asks(episode: Episode) -> Callable[..., dict[str, Any]]:
    """Asks by the openai package, and returns the message as an agent keeps it."""
    import openai  # a second

    def ask(messages: Sequence[Any], **more: Any) -> dict[str, Any]:
        with openai.OpenAI(
            base_url=episode.base_url, api_key=episode.api_key, timeout=300
        ) as client:
            reply = client.chat.completions.create(model=episode.model, messages=messages, **more)  # type: ignore[call-overload]
        return dict(reply.choices[0].message.model_dump(exclude_none=True))

    return ask


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def sub_agents(episode: Episode) -> str:
    """A conversation, a helper's beside it, a branch, and a summary in place of the history."""
    ask = asks(episode)
    main: Conversation = [*episode.messages, ask(episode.messages, tools=episode.tools)]
    helper: Conversation = [
        {"role": "system", "content": "You look things up."},
        user("What is this about?"),
    ]
    helper.append(ask(helper, temperature=0.7))
    main += [user("go on"), ask([*main, user("go on")], tools=episode.tools)]
    ask([*main[:-2], user("or rather")], tools=episode.tools)
    helper += [user("more"), ask([*helper, user("more")], temperature=0.7)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: ask([user(f"question {n}")], max_tokens=8), range(3)))
    return str(
        ask([{"role": "system", "content": "In short."}, user("and?")])["content"] or "nothing"
    )


def test_each_reply_is_trained_in_one_trace(played: Played) -> None:
    found = played.play(sub_agents)
    assert (found.turns, len(found.traces)) == (9, 7)
    played.check(found, calls=9)


def test_streams(played: Played) -> None:
    import openai

    def agent(episode: Episode) -> None:
        with openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            chunks = client.chat.completions.create(
                model="m", messages=[user("hello")], stream=True
            )  # type: ignore[list-item]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        asks(episode)([user("hello"), {"role": "assistant", "content": text}, user("again")])

    found = played.play(agent)
    assert len(found.traces) == 1
    played.check(found, calls=2)


def test_the_first_turn_is_the_own_loops(played: Played) -> None:
    """What the engine is sent for a conversation is what rollq's own loop sends."""

    def agent(episode: Episode) -> None:
        asks(episode)(episode.messages, tools=episode.tools)

    found = played.play(agent)
    own = play_own_loop(
        Job(
            run="r",
            group="own",
            env="fake",
            split="train",
            task=0,
            budget=Budget(max_turns=1, max_new_tokens=40),
        ),
        engine=played.engine,
        renderer=checked_renderer(played.server.tokenizer, FakeEnvironment().tools),
        environment=FakeEnvironment(),
        user=FakeUser(("Where is my order?",)),
        journal=FakeJournal(),
    )
    assert found.segments()[0].prompt_ids == own.segments()[0].prompt_ids


def test_a_second_attempt_asks_only_what_is_missing(played: Played) -> None:
    first = FakeJournal()
    whole = played.play(sub_agents, journal=first)
    before = len(played.proxy.calls())
    again = played.play(sub_agents, recorded=first.events)
    assert (again.tokens, again.mask, len(played.proxy.calls())) == (
        whole.tokens,
        whole.mask,
        before,
    )
    half = first.events[: len(first.events) // 2]
    with_rest = played.play(sub_agents, recorded=half)
    assert len(played.proxy.calls()) - before == 9 - len(
        {event.turn for event in half if isinstance(event, Sampled)}
    )
    assert with_rest.turns == 9


def test_an_aborted_turn_goes_on(server: Server, played: Played) -> None:
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.3):
            server.post("/abort_request", {"abort_all": True})

    def agent(episode: Episode) -> None:
        ask, messages = asks(episode), list(episode.messages)
        for _ in range(4):
            messages += [ask(messages), user("go on")]

    operator = threading.Thread(target=interrupt)
    operator.start()
    try:
        found = played.play(agent, max_new_tokens=120)
    finally:
        over.set()
        operator.join()
    assert (found.turns, len(found.traces)) == (4, 1)
    played.check(found)


def test_a_worker_that_stops_keeps_what_was_sampled(server: Server, played: Played) -> None:
    journal = FakeJournal()

    def agent(episode: Episode) -> None:
        messages = [*episode.messages, asks(episode)(episode.messages)]
        asks(episode)([*messages, user("go on")])

    def stop() -> None:
        while sum(isinstance(event, Sampled) for event in journal.events) < 1:
            time.sleep(0.01)
        journal.stop, journal.limit = Drained("stopping"), 0

    operator = threading.Thread(target=stop)
    operator.start()
    with pytest.raises(Drained):
        played.play(agent, journal=journal)
    operator.join()
    found = played.play(agent, recorded=journal.events)
    assert (found.turns, len(found.traces)) == (2, 1)
    first = [event.ids for event in journal.events if isinstance(event, Sampled)]
    assert found.segments()[0].events[0].ids == first[0]
