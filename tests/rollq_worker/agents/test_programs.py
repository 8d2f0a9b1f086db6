"""Agents as functions, and the names by which agents are found."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rollq.env import Episode, Observation
from rollq.errors import (
    AgentFailure,
    EnvironmentFailure,
    ForOtherWorkers,
    JobFailure,
    RollqError,
    WorkerFailure,
)
from rollq.events import Acted
from rollq.job import History
from rollq_worker.agents import known_agents
from rollq_worker.agents.known_agents import agent_starter, check_agent
from rollq_worker.failures import Drained
from rollq_worker.fakes import FakeEnvironment, FakeJournal
from tests.conftest import REPO
from tests.rollq_worker.agents.played import ask, job, play, run_file


class TestFunctions:
    def test_its_step_is_recorded_as_it_asked_for_it(self) -> None:
        class Takes(FakeEnvironment):
            def step(self, action: Any) -> Any:
                action.arguments.pop("when", None)
                return super().step(action)

        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            episode.step("add", {"when": "today"})

        events = play(agent, "x", environment=Takes()).events
        assert [e.action["arguments"] for e in events if isinstance(e, Acted)][1] == {
            "when": "today"
        }

    def test_an_end_that_is_no_bool_is_recorded_as_one(self) -> None:
        class Ends(FakeEnvironment):
            def step(self, action: Any) -> Any:
                return Observation("over", done=1)  # type: ignore[arg-type]

        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            episode.step("add", {})

        assert [
            e.done for e in play(agent, "x", environment=Ends()).events if isinstance(e, Acted)
        ][-1] is True

    def test_a_step_takes_the_text_of_a_call_and_says_what_is_wrong_with_it(self) -> None:
        seen = []

        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            deep = f'{{"a": {"[" * 600}{"]" * 600}}}'
            twice = '{"a": 1, "a": 2}'
            for text in ('{"a": 1}', '{"a": ', "[" * 100_000, "[1]", deep, '{"a": NaN}', twice):
                seen.append(episode.step("add", text).text)
            seen.append(episode.step("add", {"INVALID_JSON": '{"a": '}).text)  # Anthropic's form

        events = play(agent, "x").events
        made = [e.action["arguments"] for e in events if isinstance(e, Acted)]
        assert made[1:2] == [{"a": 1}] and not any("a" in arguments for arguments in made[2:])
        assert all(
            "of 'add'" in text and "no JSON object" in text for text in [*seen[1:4], seen[-1]]
        )
        assert all(text.startswith("Error: ") for text in seen[4:])

    @pytest.mark.parametrize("arguments", [{}, {"content": 5}])
    def test_a_call_of_respond_is_told_that_it_is_no_tool(self, arguments: dict[str, Any]) -> None:
        """The policy's mistake costs the environment nothing."""
        environment, seen = FakeEnvironment(), []

        def agent(episode: Episode) -> str:
            ask(episode, episode.messages)
            seen.append(episode.step("respond", arguments).text)
            return "done"

        play(agent, "x", environment=environment)
        assert "no tool named 'respond'" in seen[0]
        assert [action.arguments for action in environment.actions] == [{"content": "done"}]

    def test_what_it_says_is_whole_text(self) -> None:
        def agent(episode: Episode) -> str:
            ask(episode, episode.messages)
            episode.step("add", {"a\ud83d": ["\ud83d"]})
            return "done\ud83d"

        acted = [
            event.action["arguments"]
            for event in play(agent, "x").events
            if isinstance(event, Acted)
        ]
        assert acted[1:] == [{"a\ufffd": ["\ufffd"]}, {"content": "done\ufffd"}]

    def test_one_in_a_file(self, written: Callable[..., str]) -> None:
        name = written(
            """
            from tests.rollq_worker.agents.played import ask

            def play(episode, greeting):
                ask(episode, [{"role": "user", "content": greeting}])
            """,
            name="solver.py",
            function="play",
        )
        assert name.startswith("solver.play@")
        assert run_file(name, greeting="ahoi").messages[0]["content"] == "ahoi"

    def test_its_answer_goes_to_the_environment(self) -> None:
        environment = FakeEnvironment()

        def agent(episode: Episode) -> str:
            ask(episode, episode.messages)
            return "my answer"

        play(agent, "hi", environment=environment)
        assert environment.actions[-1].arguments == {"content": "my answer"}

    def test_another_answer_than_text(self) -> None:
        with pytest.raises(AgentFailure, match="returned a int, not a string or None"):
            play(lambda episode: ask(episode, episode.messages) and 5, "hi")

    @pytest.mark.parametrize(
        "failure", [EnvironmentFailure, WorkerFailure, JobFailure, ForOtherWorkers]
    )
    def test_a_failure_of_its_sandbox_stays_one(self, failure: type[RollqError]) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            raise failure("the container has gone")

        with pytest.raises(failure, match="the container has gone"):
            play(agent, "hi")

    @pytest.mark.parametrize("prompt", [None, b"policy"])
    def test_an_environment_whose_system_prompt_is_no_text(self, prompt: Any) -> None:
        environment = FakeEnvironment(system_prompt=prompt)
        with pytest.raises(EnvironmentFailure, match="the system prompt is a "):
            play(lambda episode: "done", "hi", environment=environment)

    @pytest.mark.parametrize("args", [{}, {"gruss": "x"}, {"greeting": "x", "more": 1}])
    def test_wrong_arguments(self, written: Callable[..., str], args: dict[str, Any]) -> None:
        name = written("def play(episode, greeting): pass", name="solver.py", function="play")
        with pytest.raises(JobFailure, match="with agent_args"):
            run_file(name, **args)

    @pytest.mark.parametrize(
        "text",
        ["1 / 0", "def play(: pass", "import no_such_module", "raise SystemExit", "play = 5", ""],
    )
    def test_a_file_that_is_none(self, written: Callable[..., str], text: str) -> None:
        with pytest.raises(JobFailure, match="solver"):
            run_file(written(text, name="solver.py", function="play"))

    def test_one_that_does_not_end_costs_its_own_job(self) -> None:
        def agent(episode: Episode) -> None:
            over.wait(600)

        over = threading.Event()
        with pytest.raises(Drained):
            play(agent, "hi", journal=FakeJournal(stop=Drained("stopping"), limit=0))
        over.set()


def test_an_agent_may_change_what_it_is_given() -> None:
    """Other episodes of the environment have the same tools, and renderers are kept for them."""
    seen: list[str] = []

    def agent(episode: Episode) -> None:
        function = episode.tools[0]["function"]
        seen.append(function.get("description", ""))
        function["description"] = "changed"
        messages: Any = episode.messages
        messages.append({"role": "assistant", "content": "made up"})
        ask(episode, [{"role": "user", "content": "hello"}])

    for _ in range(2):
        play(agent, "one")
    assert seen == ["", ""]


def test_the_page_shows_the_example() -> None:
    [shown] = re.findall(r"```python\n(.*?)```", (REPO / "docs/agents.md").read_text(), re.DOTALL)
    example = (REPO / "examples/agents/openai_agent.py").read_text()
    code = re.sub(r'^\s*""".*?"""\n', "", example, flags=re.DOTALL | re.MULTILINE)
    assert shown.split() == code.split()


class TestNames:
    def test_a_worker_without_the_file(
        self, written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = written("", name="agent.sh")
        other = written("# changed", name="agent.sh")
        assert name != other
        found = job(agent=name)
        with pytest.raises(ForOtherWorkers, match=f"there is no such file here, but {other}"):
            agent_starter(found)
        assert "rollq worker --agent FILE" in check_agent(found)
        monkeypatch.delenv(known_agents.FILES.variable)
        with pytest.raises(ForOtherWorkers, match="there is no such file here; give every worker"):
            agent_starter(found)

    @pytest.mark.parametrize(
        ("history", "why"),
        [
            (History.KEEP, "agent 'telepathy' is unknown here; there are act, few-shot, react"),
            (History.TEMPLATE, "history=template is not for agent programs"),
        ],
    )
    def test_one_that_nobody_can_play(self, history: History, why: str) -> None:
        with pytest.raises(JobFailure, match=why):
            agent_starter(job(agent="telepathy", history=history))
