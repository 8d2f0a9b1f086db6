"""Two agents in an episode, with real processes: a learner against a frozen opponent, which both
lose their engine or their worker in the middle.
"""

import os
import signal

import pytest

from rollq import Client
from rollq.events import Acted, Replied
from rollq_worker.environments import files as environments
from tests.conftest import REPO, free_port
from tests.e2e.stack import Stack

GAME = str(REPO / "examples/nim.py")
PLAYERS = f"{REPO / 'examples/agents/two_players.py'}:play"
MODELS = '{"first": {}, "second": {"model": "opponent"}}'
JOBS = 8


def test_a_learner_plays_a_frozen_opponent_though_its_engine_and_a_worker_die(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FILES.variable, "")
    stack.engine("--env", GAME, "--latency", "0.3")
    port = free_port()
    opponent = stack.start("engine", "--env", GAME, "--port", str(port))
    options = ("--env", GAME, "--set", f"agent={PLAYERS}", "--set", f"models={MODELS}")
    submitted = stack.run(
        "submit", "--run", "nim", *options, "--tasks", "0-3", "--size", "2", "--seal"
    )
    assert submitted.returncode == 0, submitted
    monkeypatch.setenv("ROLLQ_MODEL_ENGINES", f"opponent=http://127.0.0.1:{port}")
    known = ("--env", GAME, "--agent", PLAYERS)
    first = stack.worker(JOBS, *known)
    job = f"nim/{environments.add_file(GAME).replace('@', '-')}.train.0/0"
    stack.wait(lambda: "model second" in stack.run("show", job).stdout, 60, "a reply")
    os.kill(first.pid, signal.SIGKILL)
    os.kill(opponent.pid, signal.SIGKILL)
    opponent.wait(60)
    stack.worker(JOBS, *known)
    stack.start("engine", "--env", GAME, "--port", str(port))
    stack.wait(lambda: stack.stats("nim")["done"] == JOBS, 150, "all jobs")

    attempts = set()
    with Client(stack.redis_url, run="nim") as client:
        for batch in client.batches(groups=2, timeout=60):
            rows = batch.arrays()
            assert rows.rewards.tolist() == [1.0] * 4  # the first player's; the other one has 0.0
            for trajectory in batch.trajectories:
                moves = [e for e in trajectory.events if isinstance(e, Acted) and e.action["name"]]
                replies = [e for e in trajectory.events if isinstance(e, Replied)]
                [learner] = trajectory.segments()
                assert (learner.model, trajectory.rewards["second"]) == ("first", 0.0)
                assert trajectory.turns + len(replies) == len(moves)
                assert {reply.model for reply in replies} == {"second"}
                attempts.add(trajectory.header.attempt)
            batch.ack()
    assert max(attempts) > 1, "no episode was resumed"
    assert set(stack.stats("nim")["failures"]) <= {"worker"}, stack.logs()
