"""A taskset of verifiers in real worker processes, one of which is killed (make test-verifiers)."""

import os
import signal
from pathlib import Path

import pytest

from rollq import Client, Job
from rollq.env import RESPOND
from rollq.events import Observed, Stop
from rollq.trajectory import Trajectory
from tests.e2e.stack import Stack

SITE = Path(__file__).parents[1] / "rollq_integrations/verifiers/site"
ENV = "verifiers:sums_tasks"
SIZE = 2


def test_episodes_of_a_taskset_are_continued_and_graded(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("ROLLQ_ISOLATE", ENV)
    stack.engine("--env", ENV, "--latency", "1")
    first = stack.worker(SIZE)
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(env=ENV, task=task, size=SIZE, group=f"g{task}") for task in range(2)])
        client.seal()
        stack.wait(
            lambda: client.stats()["leased"] == SIZE and _turns(client) > SIZE,
            150,
            "the first turns",
        )
        first.send_signal(signal.SIGKILL)
        stack.worker(4)
        [batch] = client.batches(2, timeout=150)
        stats = client.stats()
        batch.ack()
    assert stats["resumed"] > 0 and stats["dead"] == 0
    for trajectory in batch.trajectories:
        assert trajectory.stop is Stop.DONE
        assert trajectory.info["metrics"]["calls"] == _calls(trajectory)
        assert set(trajectory.info["rewards"]) == {"right", "used_tools", "began"}
        assert trajectory.reward == sum(
            r["score"] * r["weight"] for r in trajectory.info["rewards"].values()
        )


def test_a_worker_that_does_not_isolate_leaves_the_job_to_others(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")]))
    stack.engine("--env", ENV)
    stack.worker(1)
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(env=ENV, task=0)])
        stack.wait(lambda: f"ROLLQ_ISOLATE={ENV}" in stack.logs(), 150, "the worker's reason")
        assert client.stats()["dead"] == 0
        monkeypatch.setenv("ROLLQ_ISOLATE", ENV)
        stack.worker(1)
        client.seal()
        [batch] = client.batches(1, timeout=150)
        batch.ack()


def _turns(client: Client) -> int:
    """Entries of journals in Redis beyond header and first prompt."""
    ids = [f"r/g{task}/{sample}" for task in range(2) for sample in range(SIZE)]
    return sum(max(0, len(client.job(id).journal) - 2) for id in ids)


def _calls(trajectory: Trajectory) -> int:
    actions = [
        action
        for event in trajectory.events
        if isinstance(event, Observed)
        for action in event.actions
    ]
    return sum(action["name"] != RESPOND for action in actions)
