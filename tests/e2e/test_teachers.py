"""Teachers of a run, with real processes. The teacher is a replay engine, whose logprob of a token
follows from that token and the one before it.
"""

import os
import signal
from itertools import pairwise

import pytest

from rollq import Client
from rollq.trajectory import Trajectory
from rollq_worker.replay_engine.policy.made_up import logprob
from tests.conftest import free_port
from tests.e2e.stack import Stack, submit_groups

JOBS = 24


def check_scores(trajectory: Trajectory, teacher: str) -> None:
    """Each sampled token has the logprob that the replay engine makes up for it."""
    for segment in trajectory.segments():
        ids = [segment.prompt_ids[-1], *segment.response_ids]
        scores = segment.teacher_logprobs[teacher]
        for score, sampled, pair in zip(scores, segment.mask, pairwise(ids), strict=True):
            assert score == (pytest.approx(logprob(*pair), abs=1e-6) if sampled else 0.0)


@pytest.mark.promise
def test_every_sampled_token_is_scored_though_teacher_and_worker_die(stack: Stack):
    stack.engine()
    port = free_port()
    models = {"ROLLQ_MODEL_ENGINES": f"large=http://127.0.0.1:{port}"}
    submit_groups(stack, "taught", teachers={"math": {"model": "large"}})

    def start_worker(env):
        worker = stack.start("worker", "-c", "4", "--engine", stack.engine_url, env=env)
        stack.wait(lambda: b"ready" in worker.log.read_bytes(), 150, "the worker")  # type: ignore[attr-defined]
        return worker

    other = start_worker({})
    stack.wait(
        lambda: b"ROLLQ_MODEL_ENGINES" in other.log.read_bytes(), 60, "a word on its settings"
    )  # type: ignore[attr-defined]
    other.send_signal(signal.SIGTERM)
    assert other.wait(60) == 0

    first = start_worker(models)
    # episodes are played, and wait for the teacher, which was never there
    waiting = "the engine of 'large' is away"
    stack.wait(lambda: waiting in stack.run("top", "--once").stdout, 60, "a wait for the teacher")
    os.kill(first.pid, signal.SIGKILL)
    teacher = stack.start("engine", "--port", str(port), "--latency", "0.2")
    start_worker(models)
    stack.wait(lambda: stack.stats("taught")["done"] >= 6, 150, "six jobs")
    os.kill(teacher.pid, signal.SIGKILL)
    teacher.wait(60)
    stack.start("engine", "--port", str(port))
    stack.wait(lambda: stack.stats("taught")["done"] == JOBS, 150, "all jobs")

    with Client(stack.redis_url, run="taught") as client:
        seen = 0
        for batch in client.batches(groups=2, timeout=60):
            arrays = batch.arrays()
            assert arrays.teacher_logprobs["math"][arrays.mask].all()
            for trajectory in batch.trajectories:
                check_scores(trajectory, "math")
                seen += 1
            batch.ack()
    assert seen == JOBS
    assert set(stack.stats("taught")["failures"]) <= {"worker"}, stack.logs()
