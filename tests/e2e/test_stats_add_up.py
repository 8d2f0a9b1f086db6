"""The counts of `rollq stats` against counts of the exported file, the journals and the dead
letters.
"""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from rollq import Budget, Client, Job
from rollq.export.record import record
from rollq.ledger.replies import State
from tests.e2e.stack import FAULTY_SHOP, Stack, read_lines


def submit(client: Client) -> set[str]:
    """Submit whole groups, groups that lose a member, are dropped, or run out of turns, and groups
    whose environment breaks always or once.
    """
    once = {"fault": "error", "once": os.environ["ONCE"]}
    jobs = [
        *(
            Job(env="shop", task=task, size=2, budget=Budget(max_turns=3), group=f"short{task}")
            for task in (10, 11)
        ),
        Job(env="faulty", task=12, size=2, env_args={"fault": "error"}, group="broken"),
        Job(env="faulty", task=13, size=2, env_args=once, group="once"),
        *(Job(env="shop", task=task, size=4) for task in range(6)),
        *(Job(env="shop", task=task, size=3, min_viable=2, group=f"thin{task}") for task in (6, 7)),
        *(Job(env="shop", task=task, size=3, group=f"dropped{task}") for task in (8, 9)),
    ]
    done = client.submit(jobs)
    client.seal()
    return set(done.new)


def ended(stack: Stack) -> int:
    stats = stack.stats("a")
    return int(stats["done"] + stats["dead"])


def test_under_faults(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    out = tmp_path / "out.jsonl"
    faults = ("--mistakes", "0.4", "--errors", "0.02")
    stack.engine("--latency", "1.0", *faults)
    with Client(stack.redis_url, run="a") as client:
        ids = submit(client)
        client.cancel(["a/thin6/0", "a/dropped8/1", "a/dropped9/0", "a/dropped9/2"])
        victim = stack.start("worker", "-c", "16", "--engine", stack.engine_url, env=FAULTY_SHOP)
        stack.wait(
            lambda: stack.stats("a")["done"] >= 4, 150, "the short ones, while the others go on"
        )
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(60)
        leased = stack.stats("a")["leased"]
        assert leased
        stack.engine(*faults)
        stack.start("worker", "-c", "16", "--engine", stack.engine_url, env=FAULTY_SHOP)
        stack.wait(lambda: ended(stack) == len(ids), 300, "all jobs")
        states = {job_id: client.job(job_id) for job_id in ids}
        played = {
            job_id: record(client.trajectory(job_id))
            for job_id in ids
            if states[job_id].state is State.DONE
        }
        done = stack.run("pull", "--run", "a", "--groups", "20", "--out", str(out), "--json")
        assert done.returncode == 1, done.stderr  # four groups are dropped or dead
        records, said = read_lines(out), json.loads(done.stdout)
        letters = client.dead()
        stats = json.loads(stack.run("stats", "--run", "a", "--json").stdout)

    delivered = {found["job"] for found in records}
    dropped = {job_id for job_id in played if states[job_id].group_state == "dropped"}
    assert len(records) == len(delivered) == stats["delivered"] == said["delivered"]
    assert said["duplicates"] == 0
    assert delivered | dropped == set(played)
    assert not delivered & dropped
    assert dropped == {"a/dropped8/0", "a/dropped8/2", "a/dropped9/1"}
    assert {found["job"]: found for found in records} == {
        job_id: played[job_id] for job_id in delivered
    }

    assert (stats["submitted"], stats["done"], stats["dead"]) == (
        len(ids),
        len(played),
        len(ids) - len(played),
    )
    assert {letter.job_id for letter in letters} == ids - set(played)
    assert Counter(letter.failure for letter in letters) == {"cancelled": 4, "env": 2}
    assert (stats["groups_acked"], stats["groups_dropped"]) == (11, 3)
    assert stats["dropped"] == len(dropped)

    # The run's totals count dropped groups, which are not in the file.
    everything = [*records, *(played[job_id] for job_id in dropped)]
    assert stats["turns"] == sum(found["turns"] for found in everything)
    assert stats["sampled_tokens"] == sum(sum(found["mask"]) for found in everything)
    assert stats["total_tokens"] == sum(len(found["tokens"]) for found in everything)
    assert stats["stops"] == Counter(found["stop"] for found in everything)
    assert 1 <= stats["stops"]["turns"] <= 4  # the short ones; a mistake may end one earlier
    assert stats["reward_mean"] == pytest.approx(
        sum(found["reward"] for found in everything) / len(everything)
    )
    assert said["reward_mean"] == pytest.approx(
        sum(found["reward"] for found in records) / len(records)
    )
    assert said["stops"] == Counter(found["stop"] for found in records)

    failures = Counter({"worker": leased})  # not in a job's record once another worker got further
    for state in states.values():
        failures.update(
            {str(failure): n for failure, n in state.failures.items() if failure != "worker"}
        )
    assert stats["failures"] == failures
    assert (failures["cancelled"], failures["env"]) == (4, 5)
    assert all(found["failure"] is None and found["reward"] is not None for found in records)
