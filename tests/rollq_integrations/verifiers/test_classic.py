"""Environments of the real package verifiers 0.3 (make test-verifiers)."""

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rollq.env import RESPOND, Action, Grade
from rollq.errors import EnvironmentFailure, ForOtherWorkers, JobFailure
from rollq_integrations.verifiers import taskset
from rollq_worker.commands.env.check import check_environment
from rollq_worker.environments import domain
from rollq_worker.fakes import FakeUser

if not metadata.version("verifiers").startswith("0.3."):
    pytest.skip("verifiers 0.4 has no such environments", allow_module_level=True)
SITE = str(Path(__file__).with_name("site"))


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(SITE)
    yield


def load(kind: str, **args: Any) -> Any:
    return taskset("classic_env", kind=kind, **args)(None)


def say(text: str) -> Action:
    return Action(RESPOND, {"content": text})


def played(found: Any, index: int, *actions: Action) -> tuple[list[tuple[str, bool]], Grade]:
    with closing(found.open("train", index, {})) as episode:
        episode.reset(FakeUser([found.task("train", index).opening]))
        seen = [episode.step(action) for action in actions]
        return [(o.text, o.done) for o in seen], episode.grade()


def test_a_single_turn() -> None:
    found = domain("verifiers:classic_env")
    assert found.splits() == {"train": 3} and found.task("train", 2).opening == "What is 2+2?"
    assert (
        found.version
        == load("single").version.rsplit(" ", 1)[0] + " " + found.version.rsplit(" ", 1)[1]
    )
    with closing(found.open("train", 2, {})) as episode:
        assert episode.system_prompt == "Be brief." and list(episode.tools) == []
    seen, grade = played(found, 2, say("4"))
    assert seen == [("", True)]
    assert grade == Grade(
        1.5,
        {"metrics": {"right": 1.0, "short": 1.0, "num_turns": 1.0}, "stop": "max_turns_reached"},
    )
    assert played(found, 2, say("5"))[1].reward == 0.5


def test_tools() -> None:
    found = load("tools")
    with closing(found.open("train", 1, {})) as episode:
        [schema] = episode.tools
    assert schema["function"]["name"] == "double" and schema["function"]["parameters"][
        "required"
    ] == ["n"]
    calls = [
        Action("double", {"n": 1}),
        Action("double", {"n": [1]}),
        Action("double", {"m": 1}),
        Action("halve", {}),
    ]
    seen, grade = played(found, 1, *calls, say("2"))
    assert [done for _, done in seen] == [False] * 4 + [True]
    assert (
        seen[0][0] == "2"
        and "unexpected keyword" in seen[2][0]
        and seen[3][0] == "Error: there is no tool 'halve'"
    )
    assert (
        grade.info["metrics"]["total_tool_calls"] == 3 and grade.info["stop"] == "no_tools_called"
    )
    assert grade.info["metrics"]["right"] == 1.0


def test_tools_with_a_state_that_is_made_again_for_each_episode() -> None:
    found = load("stateful")
    with closing(found.open("train", 0, {})) as episode:
        assert set(episode.tools[0]["function"]["parameters"]["properties"]) == {"n"}
    for _ in range(2):
        seen, _ = played(
            found, 0, Action("remember", {"n": 1}), Action("remember", {"n": 2}), say("0")
        )
        assert [text for text, _ in seen] == ["kept [1]", "kept [1, 2]", ""]


def test_several_turns() -> None:
    seen, grade = played(load("guess"), 1, say("1"), say("2"))
    assert seen == [("No, not 1. Try again.", False), ("", True)] and grade.info["stop"] == "found"
    seen, grade = played(load("guess"), 1, say("give up"))
    assert seen == [("A pity.", True)] and grade.info["stop"] == "has_final_env_response"
    seen, grade = played(load("guess", max_turns=2), 1, say("7"), say("8"))
    assert seen[-1] == ("", True) and grade.info["stop"] == "max_turns_reached"


def test_a_reward_that_raises_is_never_a_reward_of_0() -> None:
    found = load("single", reward="broken")
    with pytest.raises(
        EnvironmentFailure, match="reward function broken raised KeyError: 'no truth'"
    ):
        played(found, 1, say("2"))


def test_handlers_of_signals_stay_the_workers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    load("tools")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_loads_but_does_not_play() -> None:
    raised: list[BaseException] = []

    def run() -> None:
        found = load("single")
        try:
            found.open("train", 0, {})
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert isinstance(raised[0], ForOtherWorkers)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"kind": "prompts"}, "is a OwnPrompts with a get_prompt_messages of its own"),
        ({"kind": "single", "reward": "ranked"}, "rewards a group's rollouts together"),
        ({"kind": "missing"}, "cannot be loaded"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(args: dict[str, Any], says: str) -> None:
    with pytest.raises(JobFailure, match=says):
        load(**args)


def test_wrong_questions() -> None:
    found = load("single")
    for split, index in (("train", 3), ("test", 0), ("train", -1)):
        with pytest.raises(JobFailure, match="there is no task"):
            found.task(split, index)
    with pytest.raises(JobFailure, match="takes no env_args"):
        found.open("train", 0, {"x": 1})
    few = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    with pytest.raises(JobFailure, match="prompt of other messages"):
        load("single", few_shot=few).task("train", 0)


@pytest.mark.parametrize("kind", ["single", "tools", "stateful", "guess"])
def test_the_check_of_environments_finds_nothing_wrong(kind: str) -> None:
    assert (
        check_environment(
            load(kind, max_turns=4) if kind == "guess" else load(kind), "train", [0]
        ).problems
        == []
    )
