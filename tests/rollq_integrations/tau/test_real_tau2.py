"""The adapter of tau2-bench on the real package, compared with the package's own environment and
evaluators.

The package is on no index. It is looked for among the installed ones, or in the clone that
ROLLQ_TAU2_BENCH names. Without it these tests are skipped; `make test-tau` brings it.
"""

import importlib.util
import json
import os
import random
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rollq.env import RESPOND, STOP_MARKER, Action
from rollq_integrations.tau.tau2.package import bare_package
from rollq_worker.environments import domain
from rollq_worker.fakes import FakeUser
from tests.rollq_worker.environments.episodes import calls_of, messages_of, mistaken, respond

WHERE = os.environ.get("ROLLQ_TAU2_BENCH")
pytestmark = pytest.mark.skipif(
    WHERE is None and importlib.util.find_spec("tau2") is None,
    reason="NOT TESTED: tau2-bench is not installed and ROLLQ_TAU2_BENCH names no clone of "
    "it (make test-tau)",
)
SPLITS = {
    "retail": {"train": 74, "test": 40, "base": 114},
    "airline": {"train": 30, "test": 20, "base": 50},
    "telecom": {"small": 20, "train": 74, "test": 40, "full": 2285, "base": 114},
}
WHOLE = {"retail": "base", "airline": "base", "telecom": "full"}
STRIDE = {"retail": 23, "airline": 17, "telecom": 190}
"""Which tasks are graded by the package as well: it loads its data for every episode."""
CHANGED = {"12": 5, "13": 5, "18": 5, "91": 2, "107": 2}
"""Retail tasks that were corrected after June 2025, and the number of their calls now."""


@pytest.fixture(scope="module", params=["retail", "airline", "telecom"])
def real_tau2(request: pytest.FixtureRequest) -> Iterator[Any]:
    if WHERE is not None and (source := str(Path(WHERE) / "src")) not in sys.path:
        assert (Path(source) / "tau2").is_dir(), f"no tau2 in ROLLQ_TAU2_BENCH={WHERE}"
        sys.path.insert(0, source)
        importlib.invalidate_caches()
    yield domain(f"tau2:{request.param}")


class Original:
    """The package's messages and evaluators."""

    def __init__(self, variant: str) -> None:
        self.domain = import_module(f"tau2.domains.{variant}.environment")
        with bare_package(Path(self.domain.__file__).parents[2]):
            self.message = import_module("tau2.data_model.message")
            self.environment = import_module("tau2.evaluator.evaluator_env").EnvironmentEvaluator
            self.communicate = import_module(
                "tau2.evaluator.evaluator_communicate"
            ).CommunicateEvaluator
            self.action = import_module("tau2.evaluator.evaluator_action").ActionEvaluator
        self.tasks = {task.id: task for task in self.domain.get_tasks(None)}

    def reward(self, id: str, exchanges: list[tuple[str, Action, str]]) -> float:
        """By all but the judge. The evaluator replays the calls and compares each result with what
        was seen.
        """
        task, messages = self.tasks[id], []
        kinds = {"assistant": self.message.AssistantMessage, "user": self.message.UserMessage}
        for number, (role, action, seen) in enumerate(exchanges):
            if action.name == RESPOND:
                messages.append(kinds[role](role=role, content=action.arguments["content"]))
                continue
            call = {
                "id": str(number),
                "name": action.name,
                "arguments": dict(action.arguments),
                "requestor": role,
            }
            messages.append(kinds[role](role=role, tool_calls=[self.message.ToolCall(**call)]))
            messages.append(
                self.message.ToolMessage(id=str(number), role="tool", content=seen, requestor=role)
            )
        basis = {part.value for part in task.evaluation_criteria.reward_basis}
        reward: float = self.environment.calculate_reward(
            self.domain.get_environment, task, messages
        ).reward
        for part, evaluator in (("COMMUNICATE", self.communicate), ("ACTION", self.action)):
            if part in basis:
                reward *= evaluator.calculate_reward(task, messages).reward
        return reward


def played(real_tau2: Any, split: str, index: int, moves: Any, replies: Any) -> tuple[Any, Any]:
    """The grade, and everything that both sides did and saw."""
    task, environment = real_tau2.task(split, index), real_tau2.open(split, index, {})
    user = FakeUser([task.opening, *replies])
    environment.reset(user)
    exchanges: list[tuple[str, Action, str]] = []
    left, done = iter(moves), False
    while not done:
        move, heard = next(left, respond("I see.")), len(user.heard)
        observation = environment.step(move)
        done = observation.done
        exchanges.append(("assistant", move, observation.text))
        for said, result in zip(user.lines[heard + 1 :], user.heard[heard + 1 :], strict=False):
            call = json.loads(said.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            text = result.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
            exchanges.append(("user", Action(call["name"], call["arguments"]), text))
    return environment.grade(), exchanges


def test_ground_truths_are_worth_everything(real_tau2: Any) -> None:
    variant = real_tau2.name.partition(":")[2]
    assert real_tau2.splits() == SPLITS[variant]
    split, judged = WHOLE[variant], 0
    tasks = [real_tau2.task(split, index) for index in range(SPLITS[variant][split])]
    for index, task in enumerate(tasks):
        grade, _ = played(real_tau2, split, index, task.moves, task.replies)
        assert grade.reward == 1.0, (task.id, grade.info)
        judged += bool(task.assertions)
    assert judged == {"retail": 40, "airline": 0, "telecom": 0}[variant]
    assert len({task.opening for task in tasks}) == len({task.hash for task in tasks}) == len(tasks)


def test_tasks_are_the_corrected_ones(real_tau2: Any) -> None:
    if real_tau2.name == "tau2:retail":
        tasks = {task.id: task for task in (real_tau2.task("base", index) for index in range(114))}
        assert {id: len(calls_of(tasks[id])) for id in CHANGED} == CHANGED


def test_episodes_are_worth_what_the_package_s_evaluators_give(real_tau2: Any) -> None:
    variant, rng, verdicts = real_tau2.name.partition(":")[2], random.Random(3), []
    original, split = Original(variant), WHOLE[variant]
    for index in range(0, SPLITS[variant][split], STRIDE[variant]):
        task = real_tau2.task(split, index)
        first, *rest = messages_of(task)
        wrong = rng.choice([*mistaken(calls_of(task))])
        stops = [f"Bye. {STOP_MARKER}"]
        for moves, replies in (
            *product(([], task.moves), (task.replies, stops)),
            ([first, *wrong, *rest], task.replies),
            (task.moves, [line for line in task.replies if rng.random() < 0.7] + stops),
        ):
            grade, exchanges = played(real_tau2, split, index, moves, replies)
            assert grade.reward == original.reward(task.id, exchanges), (task.id, moves, replies)
            verdicts.append(grade.reward)
    assert {0.0, 1.0} <= set(verdicts)
