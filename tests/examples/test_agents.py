"""The agents of examples/agents, whose policies make mistakes, and the game of two of them."""

import json
from importlib import import_module
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq.events import Acted
from rollq.trajectory import Trajectory
from rollq_worker.agents import known_agents
from rollq_worker.fakes import FakeEnvironment
from rollq_worker.users.scripted import ScriptedUser
from tests.conftest import REPO
from tests.rollq_worker.agents import played

of_one_policy = pytest.mark.parametrize(
    "agent",
    [
        "openai_agent",
        pytest.param("anthropic_agent", marks=pytest.mark.packages),
        pytest.param("langgraph_agent", marks=pytest.mark.packages),
    ],
)
pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
GUESS = ('{"name": "guess", "arguments": {"number"', "It is 1.")
"""A call that breaks off, and then the answer of task 0."""


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(known_agents.FILES.variable, raising=False)


def play(agent: str, env: str, *texts: str, **options: Any) -> Trajectory:
    """Task 0 of an example."""
    domain = import_module(f"examples.{env}").load(None)
    task = domain.task("train", 0)
    name = known_agents.add_file(str(REPO / f"examples/agents/{agent}.py:play"))
    environment = domain.open("train", 0, {})
    user = ScriptedUser(task.opening, task.replies)
    return played.play(name, *texts, environment=environment, user=user, **options)


@of_one_policy
def test_a_system_prompt_and_parameters_may_be_missing(agent: str) -> None:
    name = known_agents.add_file(str(REPO / f"examples/agents/{agent}.py:play"))
    add = {"type": "function", "function": {"name": "add", "description": "Adds."}}
    environment = FakeEnvironment(tools=[add], system_prompt="")
    done = played.play(name, '{"name": "add", "arguments": {}}', "Done.", environment=environment)
    assert (done.reward, done.stop) == (1.0, "done")


def take(stones: object, name: str = "take") -> str:
    return json.dumps({"name": name, "arguments": {"stones": stones}})


@of_one_policy
def test_a_broken_call_is_told_to_the_policy(agent: str) -> None:
    done = play(agent, "guess_number", *GUESS)
    assert (done.reward, done.turns, len(done.traces)) == (1.0, 2, 1)
    assert [message["role"] for message in done.messages[-2:]] == ["tool", "assistant"]


@pytest.mark.parametrize(
    "said",
    [
        '{"name": "take", "arguments": {"stones"',
        '["take", 3]',
        take(True),
        take("3"),
        take(3, "steal"),
        take(3, "respond"),
        "I take three.",
        "",
    ],
)
def test_a_player_that_breaks_the_rules_loses(said: str) -> None:
    models = {"first": {}, "second": {}}
    done = play("two_players", "nim", take(3), said, models=models)
    assert done.rewards == {"first": 1.0, "second": 0.0}
    assert [event.done for event in done.events if isinstance(event, Acted)][1:] == [False, True]


def test_nim_takes_no_args() -> None:
    with pytest.raises(JobFailure):
        import_module("examples.nim").load(None).open("train", 0, {"seed": 1})
