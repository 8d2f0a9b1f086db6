"""Budgets of an agent's episode, what its requests ask for, and what ends it before its time."""

from array import array
from typing import Any

import pytest

from rollq.env import Episode
from rollq.errors import AgentFailure, JobFailure
from rollq.events import Closed, Finish, Sampled, Stop
from rollq_worker.agents import growth
from rollq_worker.agents.turn_request import RequestRefused
from rollq_worker.fakes import FakeEngine, FakeRenderer
from rollq_worker.protocols import Generated, SampleRequest
from tests.rollq_worker.agents.played import Refused, ask, play, post, said, user
from tests.rollq_worker.episode.episodes import PieceEngine


class TestBudgets:
    def test_more_turns_than_the_job_has(self) -> None:
        def agent(episode: Episode) -> None:
            for n in range(5):
                ask(episode, [user(str(n))])

        played = play(agent, "hi", budget={"max_turns": 3})
        assert (played.stop, played.turns, played.reward) == (Stop.TURNS, 3, 0.0)

    def test_a_full_context_ends_an_agent_that_does_not_know_what_to_do(self) -> None:
        def agent(episode: Episode) -> None:
            messages = list(episode.messages)
            while True:
                messages += [said(ask(episode, messages)), user("go on" * 20)]

        played = play(agent, "hi", budget={"max_tokens": 300})
        assert (played.stop, played.reward) == (Stop.LENGTH, 0.0)

    @pytest.mark.parametrize("limit", ["job", "model"])
    def test_a_full_context_is_compacted_again_and_again(self, limit: str) -> None:
        def agent(episode: Episode) -> None:
            messages, kept, turns = list(episode.messages), list(episode.messages), 0
            while turns < 12:
                try:
                    messages += [said(ask(episode, messages)), user(f"go on {turns}" + "." * 60)]
                    turns += 1
                except Refused as e:
                    assert e.error["code"] == "context_length_exceeded"
                    messages = [*kept, user(f"in short: {turns} turns")]

        budget = {"max_tokens": 300} if limit == "job" else {}
        contexts = {"context": 300} if limit == "model" else {}
        played = play(agent, engine=FakeEngine(["hi"], **contexts), budget=budget)
        assert (played.stop, played.turns) == (Stop.DONE, 12)
        assert len(played.traces) == 4 and max(played.traces) <= 300
        assert sum(played.mask) == 12 * len("hi\0")  # each turn is trained in one of them
        # Another worker comes to the same end, after any event.
        for count in range(1, len(played.events)):
            again = play(
                agent,
                engine=FakeEngine(["hi"], **contexts),
                recorded=played.events[:count],
                budget=budget,
            )
            assert (again.tokens, again.mask, again.stop) == (
                played.tokens,
                played.mask,
                played.stop,
            )

    @pytest.mark.parametrize("where", ["content", "arguments", "tools"])
    def test_a_text_that_is_far_too_long_never_becomes_tokens(self, where: str) -> None:
        text = "x" * 9000
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": ""}
        tool = {"type": "function", "function": {"name": "f", "description": text}}
        asked: dict[str, Any] = {
            "content": {"messages": [user(text)]},
            "arguments": {"messages": [user("hi"), called, result]},
            "tools": {"messages": [user("hi")], "tools": [tool]},
        }[where]

        class Written(FakeRenderer):
            def open(self, messages: Any, tools: Any) -> Any:
                assert text not in repr((messages, tools))
                return super().open(messages, tools)

        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="context_length_exceeded"):
                ask(episode, **asked)
            ask(episode, [user("hi")])

        played = play(agent, "hi", budget={"max_tokens": 500}, renderer=Written())
        assert played.stop is Stop.DONE

    def test_an_agent_that_fills_its_journal_before_its_first_turn_is_to_blame(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(growth, "LARGEST_JOURNAL", 2200)

        def agent(episode: Episode) -> None:
            for _ in range(50):
                episode.step("add", {"a": "x" * 100})

        with pytest.raises(AgentFailure):
            play(agent, "hi")

    def test_a_turn_that_is_cut(self) -> None:
        def agent(episode: Episode) -> None:
            assert (
                post(episode, {"messages": [user("?")], "max_tokens": 4})["choices"][0][
                    "finish_reason"
                ]
                == "length"
            )

        assert play(agent, "a long answer").sampled_tokens == 4

    @pytest.mark.parametrize(
        ("limit", "most", "code", "stop"),
        [
            ("STEPS", 4, "steps_spent", Stop.TURNS),
            ("LARGEST_JOURNAL", 2200, "journal_full", Stop.LENGTH),
        ],
    )
    def test_steps_end(
        self, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, code: str, stop: Stop
    ) -> None:
        monkeypatch.setattr(growth, limit, most)  # the opening is a step

        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            for _ in range(3):
                episode.step("add", {"a": "x" * 300})
            with pytest.raises(RequestRefused) as caught:
                while True:
                    episode.step("add", {"a": "x" * 300})
            assert caught.value.code == code
            raise RuntimeError("it cannot go on")

        played = play(agent, "hi")
        assert (played.stop, played.reward) == (stop, 0.0)

        # Another worker, whose agent does the same, comes to the same end.
        again = play(
            agent,
            "hi",
            recorded=[event for event in played.events if not isinstance(event, Closed)],
        )
        assert (again.stop, len(again.events)) == (played.stop, len(played.events))

    @pytest.mark.parametrize("where", ["messages", "asked"])
    def test_requests_that_the_journal_has_no_room_for(
        self, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        monkeypatch.setattr(growth, "LARGEST_JOURNAL", 30_000)

        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="400 journal_full"):
                for n in range(20):
                    if where == "messages":
                        ask(episode, [user("x" * 500 + str(n))])
                    else:
                        ask(episode, [user(str(n))], stop=["x" * 3000])

        assert 3 < play(agent, "hi", budget={"max_turns": 20}).turns < 12


def test_what_was_asked_is_recorded_and_sent() -> None:
    engine = FakeEngine(["hi"])
    generate, sent = engine.generate, []

    def noted(request: SampleRequest) -> Any:
        sent.append((dict(request.sampling), request.max_new_tokens))
        return generate(request)

    engine.generate = noted  # type: ignore[method-assign]
    asked = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "max_completion_tokens": 50,
    }

    def agent(episode: Episode) -> None:
        ask(
            episode,
            episode.messages,
            **asked,
            user="somebody",
            parallel_tool_calls=True,
            logit_bias=None,
        )

    played = play(agent, engine=engine, sampling={"temperature": 1.0, "top_k": 5})
    sampling = {"temperature": 0.5, "top_p": 0.9, "sampling_seed": 7, "stop": ["END"]}
    assert sent == [({**sampling, "top_k": 5}, 50)]
    [event] = [event for event in played.events if isinstance(event, Sampled)]
    assert event.asked == {**sampling, "max_new_tokens": 50}


def test_a_stop_string_is_not_in_the_reply() -> None:
    def agent(episode: Episode) -> None:
        first = said(ask(episode, [user("?")], stop="END"))
        assert first["content"] == "said "
        ask(episode, [user("?"), first, user("more")])

    played = play(agent, engine=PieceEngine(("said END", Finish.STOP), ("two\0", Finish.STOP)))
    assert len(played.traces) == 1


class TestFailures:
    def test_an_agent_that_raises(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            raise RuntimeError("it broke")

        with pytest.raises(AgentFailure, match="the agent program raised RuntimeError: it broke"):
            play(agent, "hi")

    def test_an_agent_that_asks_nothing(self) -> None:
        with pytest.raises(AgentFailure, match="ended without a turn"):
            play(lambda episode: None, "hi")

    def test_a_first_prompt_that_leaves_no_room(self) -> None:
        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="context_length_exceeded"):
                ask(episode, [user("x" * 1000)])

        with pytest.raises(JobFailure, match="first prompt leaves no room"):
            play(agent, "hi", budget={"max_tokens": 300})
        learns = FakeEngine(["hi"])  # the limit of its engine, as a refusal tells it
        learns.generate = lambda request: Generated(  # type: ignore[method-assign]
            ids=array("I"), logprobs=array("f"), versions=(), finish=Finish.LENGTH
        )
        with pytest.raises(JobFailure, match="first prompt leaves no room"):
            play(agent, engine=learns)
