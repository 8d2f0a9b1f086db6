"""`rollq eval` over real workers: its numbers, a kill in the middle, dead jobs, and runs with other
jobs.
"""

import json
import os
import signal
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from rollq import Client
from rollq.errors import ContractError
from tests.e2e.stack import Stack, read_lines

LINE = ("--env", "shop", "--split", "test", "--tasks", "0-7", "--size", "4")


def evaluate(stack: Stack, run: str, *more: str, code: int = 0) -> tuple[dict, str]:
    """The object on stdout, and the text on stderr."""
    done = stack.run("eval", "--run", run, *LINE, "--json", *more)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def test_its_numbers_are_those_of_the_trajectories(stack: Stack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    stack.engine("--mistakes", "0.4")
    stack.worker(16)
    found, _ = evaluate(stack, "e", "--out", str(out))
    records = read_lines(out)
    rewards = defaultdict(list)
    for record in records:
        rewards[record["task"]].append(record["reward"])
    assert sorted(rewards) == list(range(8))
    assert {len(tries) for tries in rewards.values()} == {4}
    flat = [reward for tries in rewards.values() for reward in tries]
    assert 0.0 < sum(flat) / 32 < 1.0
    assert found["reward_mean"] == pytest.approx(sum(flat) / 32)
    for k in range(1, 5):
        draws = [
            all(r == 1.0 for r in draw)
            for tries in rewards.values()
            for draw in combinations(tries, k)
        ]
        assert found["pass_hat_k"][str(k)] == pytest.approx(sum(draws) / len(draws))
    assert found["sampled_tokens"] == sum(sum(record["mask"]) for record in records)
    assert (found["submitted"], found["done"], found["dead"], found["versions"]) == (
        32,
        32,
        0,
        ["default"],
    )
    stats = stack.stats("e")
    assert (stats["delivered"], stats["groups_acked"]) == (32, 8)
    again, _ = evaluate(stack, "e")
    assert {**again, "wall_s": 0} == {**found, "wall_s": 0}
    shown = json.loads(stack.run("eval", "--show", "e", "--json").stdout)
    assert {**shown, "wall_s": 0} == {**found, "wall_s": 0}
    assert stack.stats("e") == {**stats, "resubmitted": 32}


@pytest.mark.promise
def test_killed_in_the_middle_the_same_line_goes_on(stack: Stack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    stack.engine("--latency", "0.1")
    stack.worker(4)
    first = stack.start("eval", "--run", "e", *LINE, "--out", str(out))
    stack.wait(lambda: stack.stats("e")["groups_ready"] >= 1, 150, "a group")
    os.kill(first.pid, signal.SIGKILL)
    first.wait(60)
    assert stack.stats("e")["groups_acked"] == 0
    found, _ = evaluate(stack, "e", "--out", str(out))
    assert (found["done"], found["dead"], found["reward_mean"]) == (32, 0, 1.0)
    assert len({record["job"] for record in read_lines(out)}) == len(read_lines(out)) == 32
    stats = stack.stats("e")
    assert (stats["submitted"], stats["delivered"], stats["redelivered"]) == (32, 32, 0)


def test_a_run_with_other_jobs_is_refused(stack: Stack) -> None:
    assert stack.run("submit", "--run", "train", "--env", "shop", "--tasks", "0-3").returncode == 0
    before = stack.stats("train")
    done = stack.run("eval", "--run", "train", *LINE)
    assert done.returncode == 2
    assert "run train has other jobs: an evaluation needs a run of its own" in done.stderr
    assert stack.stats("train") == before


def test_without_a_worker_it_times_out(stack: Stack) -> None:
    done = stack.run("eval", "--run", "e", *LINE, "--timeout", "0.5")
    assert done.returncode == 1
    assert "0 of 32 tries were graded within 0.5 s" in done.stderr
    assert "32 queued jobs, 0 being played" in done.stderr


def test_eval_groups_beside_training(stack: Stack, tmp_path: Path) -> None:
    """On one run, each consumer gets the groups of the purpose it asks for."""
    out = tmp_path / "out.jsonl"
    stack.engine()
    stack.worker(8)
    both = ("submit", "--run", "r", "--env", "shop", "--size", "2")
    assert stack.run(*both, "--tasks", "0-3").returncode == 0
    assert (
        stack.run(
            *both, "--split", "test", "--tasks", "0-2", "--set", "purpose=eval", "--seal"
        ).returncode
        == 0
    )
    with Client(stack.redis_url, run="r") as client:
        trained = [
            group.id for batch in client.batches(2, timeout=150) for group in acked(batch).groups
        ]
        assert sorted(trained) == [f"shop.train.{task}" for task in range(4)]
        with pytest.raises(ContractError, match="purpose must be train or eval"):
            client.batches(1, purpose="fun")  # type: ignore[arg-type]
    done = stack.run(
        "pull", "--run", "r", "--groups", "3", "--purpose", "eval", "--out", str(out), "--json"
    )
    assert done.returncode == 0, done.stderr
    assert {record["split"] for record in read_lines(out)} == {"test"}
    assert len(read_lines(out)) == 6
    with Client(stack.redis_url, run="r") as client:
        assert (client.stats()["delivered"], client.stats()["groups_acked"]) == (14, 7)


def acked(batch):
    batch.ack()
    return batch
