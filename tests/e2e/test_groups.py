"""Groups that lose members, with real workers: what is retried, handed out, dropped and replaced."""

from pathlib import Path

import pytest

from rollq import Client, FailureClass, Job
from rollq.wire.codec import decode_header
from tests.e2e.stack import FAULTY_SHOP, Stack

SIZE = 4


@pytest.fixture
def played(stack: Stack) -> Stack:
    """A perfect engine and a worker with the faulty shop, so that only a fault can cost a reward."""
    stack.engine()
    stack.start("worker", "-c", "8", "--engine", stack.engine_url, env=FAULTY_SHOP)
    return stack


def breaks_once(folder: Path, **changes: object) -> Job:
    """A group in which the environment of one member breaks, once."""
    args = {"fault": "error", "once": str(folder / "once")}
    return Job(**{"env": "faulty", "task": 3, "size": SIZE, "group": "g", "env_args": args, **changes})


def test_only_the_failed_member_is_played_again_and_from_the_start(played: Stack, tmp_path: Path) -> None:
    with Client(played.redis_url, run="r") as client:
        client.submit([breaks_once(tmp_path)])
        client.seal()
        played.wait(lambda: client.stats()["done"] == SIZE, 150, "the group")
        states = [client.job(f"r/g/{sample}") for sample in range(SIZE)]
        assert sorted(state.attempt for state in states) == [1, 1, 1, 2]
        [failed] = [state for state in states if state.attempt == 2]
        assert (failed.failures, list(failed.set_aside)) == ({FailureClass.ENV: 1}, [1])
        assert all(not state.failures and not state.set_aside for state in states if state is not failed)
        assert decode_header(failed.journal[0], failed.id).attempt == 2  # a new journal; nothing was resumed
        assert (client.stats()["claims"], client.stats()["resumed"]) == (SIZE + 1, 0)
        [batch] = client.batches(1, timeout=10)
        [group] = batch.groups
        batch.ack()
    assert (group.rewards, list(group.dead)) == ([1.0] * SIZE, [])


def test_a_dead_member_leaves_a_group_that_is_viable_without_it(played: Stack, tmp_path: Path) -> None:
    with Client(played.redis_url, run="r", budgets={FailureClass.ENV: 1}) as client:
        client.submit([breaks_once(tmp_path, min_viable=SIZE - 1)])
        client.seal()
        [batch] = client.batches(1, timeout=150)
        [group] = batch.groups
        [letter] = client.dead()
        batch.ack()
        stats = client.stats()
    assert list(group.dead) == [letter.job_id]
    assert letter.failure is FailureClass.ENV
    assert (group.size, group.rewards, group.advantages) == (SIZE, [1.0] * (SIZE - 1), [0.0] * (SIZE - 1))
    assert (stats["delivered"], stats["dead"], stats["groups_dropped"]) == (SIZE - 1, 1, 0)


def test_a_group_that_is_not_viable_is_dropped_counted_and_replaced(played: Stack, tmp_path: Path) -> None:
    """No row stands in for the dead member: a fresh group of four played samples is handed out."""
    with Client(played.redis_url, run="r", budgets={FailureClass.ENV: 1}) as client:
        jobs = [breaks_once(tmp_path, seed=7)]
        client.submit(jobs)
        assert client.refill(jobs, times=2).new == [f"r/g.r1/{sample}" for sample in range(SIZE)]
        client.seal()
        batches = []
        for batch in client.batches(1, timeout=150):
            batches.append(batch)
            batch.ack()
        stats = client.stats()
    [[group]] = [batch.groups for batch in batches]
    assert (group.id, group.rewards, list(group.dead)) == ("g.r1", [1.0] * SIZE, [])
    assert len({t.job.seed for t in group.trajectories} | {7}) == 2
    assert (stats["submitted"], stats["done"], stats["dead"]) == (2 * SIZE, 2 * SIZE - 1, 1)
    assert (stats["groups_dropped"], stats["dropped"], stats["delivered"]) == (1, SIZE - 1, SIZE)
