"""Workers that are killed, stopped and started while they play."""

import os
import re
import signal
import time

import pytest
import redis

from rollq import Budget, Client
from rollq.ledger.keys import QUEUE, Keys
from tests.e2e.stack import CALM_S, JOBS, Stack, check_all_delivered, submit_groups, submit_singles
from tests.ledger_of import ledger_of
from tests.stalls import Stalls

LEASE_S = 15.0


def written(stack: Stack, run: str) -> int:
    """Entries in the journals of the leased jobs."""
    with Client(stack.redis_url, run=run) as client:
        keys, redis = ledger_of(client).keys, ledger_of(client).redis
        jobs = [member.decode().partition("#")[0] for member in redis.zrange(keys.leased, 0, -1)]
        return sum(redis.llen(keys.journal(job)) for job in jobs)


@pytest.mark.promise
def test_kill_the_only_worker_then_start_another(stack: Stack):
    stack.engine("--latency", "0.4")
    submit_groups(stack, "kill")
    first = stack.worker(8)
    stack.wait(lambda: written(stack, "kill") > 8 * 3, 150, "a whole turn of one job")
    os.kill(first.pid, signal.SIGKILL)
    first.wait(60)
    leased = stack.stats("kill")["leased"]
    assert leased > 0
    stack.worker(16)
    stats = check_all_delivered(stack, "kill", JOBS)
    assert stats["failures"]["worker"] == leased
    assert 0 < stats["resumed"] <= leased
    assert stats["turns_saved"] > 0


def test_a_frozen_worker_that_continues_writes_nothing(stack: Stack):
    stack.engine("--latency", "0.3")
    submit_groups(stack, "zombie")
    first = stack.worker(8)
    stack.wait(lambda: stack.stats("zombie")["leased"] == 8, 150, "eight leases")
    os.kill(first.pid, signal.SIGSTOP)
    stack.worker(16)
    stack.wait(lambda: stack.stats("zombie")["done"] == JOBS, 150, "all jobs")
    os.kill(first.pid, signal.SIGCONT)
    # A thread may write first, or the heartbeat may stop it first.
    refused = re.compile(rb"(no longer holds the|lost its) lease")
    log = first.log  # type: ignore[attr-defined]
    stack.wait(
        lambda: stack.stats("zombie")["fenced"] > 0 or refused.search(log.read_bytes()),
        150,
        "a fenced write",
    )
    check_all_delivered(stack, "zombie", JOBS)


def test_a_worker_with_200_jobs_is_killed(stack: Stack):
    stack.engine("--latency", "30")
    submit_singles(stack, "kill", 200, budget=Budget(deadline_s=600.0))
    victim = stack.worker(200)
    stack.wait(lambda: stack.stats("kill")["leased"] == 200, 150, "200 leases")
    submit_singles(stack, "other", 1)
    stack.worker(1)
    stack.wait(lambda: stack.stats("other")["leased"] == 1, 150, "another worker")
    with Stalls() as stalls:
        victim.kill()
        killed = time.monotonic()
        broker = redis.Redis.from_url(stack.redis_url)
        stack.wait(lambda: broker.zcard(Keys("kill").leased) == 0, 150, "all leases to expire")
        stack.wait(lambda: broker.llen(QUEUE) >= 200, 150, "all jobs to be sent")
        took = time.monotonic() - killed
        broker.close()
    print(f"200 jobs back after {took:.1f} s")
    assert took < LEASE_S + 5 or stalls.seconds > CALM_S
    stats = stack.stats("kill")
    assert (stats["queued"], stats["failures"]) == (200, {"worker": 200})
