"""Tasksets of the real package verifiers (make test-verifiers)."""

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rollq.env import RESPOND, Action, Grade, Observation
from rollq.errors import ForOtherWorkers, JobFailure
from rollq_integrations.verifiers import TasksetDomain, taskset
from rollq_worker.commands.env.check import check_environment
from rollq_worker.environments import domain
from rollq_worker.fakes import FakeUser

SITE = str(Path(__file__).with_name("site"))


@pytest.fixture(autouse=True)
def tasksets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(SITE)
    yield


def load(name: str, **config: Any) -> TasksetDomain:
    return taskset(name, **config)(None)


def say(text: str) -> Action:
    return Action(RESPOND, {"content": text})


def played(found: TasksetDomain, index: int, *actions: Action) -> tuple[list[Observation], Grade]:
    with closing(found.open("train", index, {})) as episode:
        episode.reset(FakeUser([found.task("train", index).opening]))
        return [episode.step(action) for action in actions], episode.grade()


def test_tasks_have_stable_names_and_prompts() -> None:
    found = domain("verifiers:sums_tasks")
    assert found.name == "verifiers:sums_tasks" and found.splits() == {"train": 3}
    assert found.version.startswith(f"verifiers {metadata.version('verifiers')} sums_tasks ")
    assert found.task("train", 1) == found.task("train", 1)
    assert found.task("train", 1).opening == "Add [1, 2]."
    with closing(found.open("train", 1, {})) as episode:
        assert episode.system_prompt == "Be brief."
    assert load("sums_tasks").version == found.version != load("sums_tasks", tasks=2).version


def test_tools_share_the_state_of_their_episode() -> None:
    found = load("sums_tasks")
    with closing(found.open("train", 1, {})) as episode:
        schemas = {schema["function"]["name"]: schema["function"] for schema in episode.tools}
    assert set(schemas) == {"sums_number", "sums_add"}
    assert schemas["sums_add"]["description"] == "Adds to the total."
    assert schemas["sums_add"]["parameters"]["required"] == ["n"]
    add = [
        Action("sums_number", {"n": 1}),
        Action("sums_add", {"n": 1}),
        Action("sums_add", {"n": 2}),
    ]
    for _ in range(2):  # a second episode begins afresh
        seen, grade = played(found, 1, *add, say("3"))
        assert [(o.text, o.done) for o in seen] == [
            ("2", False),
            ("the total is 1", False),
            ("the total is 3", False),
            ("", True),
        ]
        assert grade.reward == 0.75 + 0.25 + 0.25
        assert grade.info["metrics"] == {"calls": 3.0}
        assert grade.info["rewards"] == {
            "right": {"score": 1.0, "weight": 0.75},
            "used_tools": {"score": 1.0, "weight": 0.25},
            "began": {"score": 1.0, "weight": 0.25},
        }


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (Action("sums_add", {"n": -1}), "only from 0 on"),
        (Action("sums_add", {"n": "x"}), "validation error"),
        (Action("sums_add", {}), "validation error"),
        (Action("sums_number", {"n": 9}), "index out of range"),
        (Action("subtract", {}), "unknown tool 'subtract'"),
    ],
)
def test_a_call_that_fails_is_an_observation_and_leaves_the_state(call: Action, says: str) -> None:
    seen, grade = played(load("sums_tasks"), 0, call, Action("sums_add", {"n": 1}), say("1"))
    assert says in seen[0].text and not seen[0].done
    assert seen[1].text == "the total is 1" and grade.reward == 1.25


def test_a_stop_condition_ends_the_episode() -> None:
    seen, grade = played(load("sums_tasks"), 0, Action("sums_add", {"n": 2000}))
    assert seen[0].done and grade.info["stop"] == "enough" and grade.reward == 0.25


def test_a_single_question_is_graded_by_the_packages_verifier() -> None:
    found = load("maths_tasks")
    with closing(found.open("train", 0, {})) as episode:
        assert episode.system_prompt == "Think."
    assert found.task("train", 0).opening == "What is 1/2 + 1/4?"
    assert played(found, 0, say("So \\boxed{\\frac{3}{4}}"))[1].reward == 1.0
    assert played(found, 0, say("So \\boxed{1}"))[1].reward == 0.0


def test_another_thread_plays_nothing() -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            load("maths_tasks").open("train", 0, {})
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert isinstance(raised[0], ForOtherWorkers) and "ROLLQ_ISOLATE=verifiers:maths_tasks" in str(
        raised[0]
    )


@pytest.mark.parametrize(("fault", "says"), [("raises", "no truth"), ("counts", "counts tokens")])
def test_a_reward_that_raises_is_never_a_reward_of_0(fault: str, says: str) -> None:
    found = load("sums_tasks", task={"fault": fault})
    with pytest.raises(Exception, match=says) as raised:
        played(found, 0, say("1"))
    assert not isinstance(raised.value, JobFailure)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"kind": "Container"}, "task 0 of the taskset 'refused_tasks' needs a container"),
        ({"kind": "Intercepts"}, "needs functions that intercept requests"),
        ({"kind": "ScoresRuntime"}, "needs a runtime, for look"),
        ({"kind": "SetsUpRuntime"}, "needs a runtime, for setup"),
        (
            {"kind": "StopsRequests"},
            "needs requests and responses, for the stop condition too_long",
        ),
        ({"kind": "ToolsElsewhere"}, "needs the toolset Tools to run elsewhere"),
        ({"kind": "shared"}, "has tool servers that its tasks share"),
        ({"kind": "none"}, "has no tasks"),
        ({"kind": "Missing"}, "cannot be loaded: KeyError"),
        ({"unknown": 1}, "cannot be loaded: ValidationError"),
        ({"data": {"prompt": "x", "image": "debian"}}, "needs a container"),
        ({"data": {"prompt": "x", "agent_user": "agent"}}, "needs its agent_user"),
        ({"data": {}}, "needs a prompt that is not a text"),
        ({"data": {"prompt": []}}, "needs a prompt of other messages"),
        (
            {"data": {"prompt": [{"role": "assistant", "content": "x"}]}},
            "needs a prompt of other messages",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(config: dict[str, Any], says: str) -> None:
    with pytest.raises(JobFailure, match=says):
        load("refused_tasks", **config)


def test_two_tools_of_one_name() -> None:
    with pytest.raises(JobFailure, match="two tools are called 'tools_nothing'"):
        load("refused_tasks", kind="SameTools").open("train", 0, {})


def test_wrong_names() -> None:
    with pytest.raises(JobFailure, match="cannot be loaded: ModuleNotFoundError"):
        domain("verifiers:no_such_taskset")
    with pytest.raises(JobFailure, match="name the taskset"):
        domain("verifiers")
    found = load("sums_tasks")
    for split, index in (("train", 3), ("test", 0), ("train", -1)):
        with pytest.raises(JobFailure, match="has 3 of 'train'"):
            found.task(split, index)
    with pytest.raises(JobFailure, match="takes no env_args"):
        found.open("train", 0, {"x": 1})


def test_another_series_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.2.1")
    with pytest.raises(JobFailure, match=r"needs verifiers 0\.4\.\*, not 0\.2\.1: pip install"):
        load("sums_tasks")


def test_the_check_of_environments_finds_nothing_wrong() -> None:
    for name in ("sums_tasks", "maths_tasks"):
        report = check_environment(load(name), "train", [0])
        assert report.problems == [] and report.played == 1
    assert "verifiers" in sys.modules
