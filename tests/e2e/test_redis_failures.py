"""A Redis that restarts or takes no writes while workers play."""

import signal
import time

import pytest

from rollq import Client, Job
from tests.e2e.own_redis import OwnRedis
from tests.e2e.stack import Stack, check_all_delivered, submit_singles
from tests.ledger_of import ledger_of


class TestRedis:
    @pytest.mark.parametrize(
        "how",
        [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.promise)],
        ids=["term", "kill"],
    )
    def test_it_restarts_in_the_middle(self, own_stack: Stack, own_redis: OwnRedis, how: int):
        own_stack.engine("--latency", "0.5")
        submit_singles(own_stack, "restart", 24)
        own_stack.worker(16)
        own_stack.wait(lambda: own_stack.stats("restart")["done"] >= 2, 150, "some jobs")
        own_redis.stop(how)
        time.sleep(8)
        own_redis.start()
        back = time.monotonic()
        done = own_stack.stats("restart")["done"]
        own_stack.wait(
            lambda: done == 24 or own_stack.stats("restart")["done"] > done, 150, "the run to go on"
        )
        print(f"goes on after {time.monotonic() - back:.1f} s")
        stats = check_all_delivered(own_stack, "restart", 24)
        assert not stats["failures"], own_stack.logs()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "playing"])
def test_a_worker_outlives_a_redis_that_takes_no_writes(stack: Stack, busy: bool) -> None:
    """As during a failover. Celery sees no lost connection and would end by itself."""
    stack.engine("--latency", "0.1")
    worker = stack.worker(2)
    with Client(stack.redis_url, run="r") as client:
        if busy:
            client.submit([Job(env="shop", task=task, size=2) for task in range(4)])
            stack.wait(lambda: client.stats()["claims"], 150, "a claim")
        ledger_of(client).redis.replicaof("127.0.0.1", "1")
        try:
            time.sleep(3.0)
        finally:
            ledger_of(client).redis.replicaof("NO", "ONE")
        client.submit([Job(env="shop", task=9)])
        stack.wait(lambda: client.stats()["done"] == 1 + 4 * 2 * busy, 150, "the end")
        assert not client.stats()["failures"]
    assert worker.poll() is None
    said = worker.log.read_text()  # type: ignore[attr-defined]
    assert "Unrecoverable" not in said
    assert "reaper failed" not in said
