"""What a run survives: real workers killed, stopped and started while they play."""

import os
import signal
import time

import celery
import redis

from rollq import Client, Job
from tests.e2e.conftest import Stack

GROUPS, SIZE = 6, 4
JOBS = GROUPS * SIZE


def submit(stack: Stack, run: str, **job) -> None:
    with Client(stack.redis_url, run=run) as client:
        client.submit([Job(env="shop", task=i, size=SIZE, **job) for i in range(GROUPS)])
        client.seal()


def collect(stack: Stack, run: str) -> list[str]:
    """Take and acknowledge everything; the ids received, in order."""
    received = []
    with Client(stack.redis_url, run=run) as client:
        for batch in client.batches(groups=2, timeout=60):
            received += [t.job.id for t in batch.trajectories]
            batch.ack()
    return received


def check_whole(stack: Stack, run: str) -> dict:
    received = collect(stack, run)
    stats = stack.stats(run)
    assert len(received) == len(set(received)) == JOBS, stack.logs()
    assert (stats["submitted"], stats["done"], stats["dead"]) == (JOBS, JOBS, 0)
    assert (stats["delivered"], stats["duplicates"], stats["queued"], stats["leased"]) == (JOBS, 0, 0, 0)
    return stats


def test_kill_the_only_worker_then_start_another(stack: Stack):
    stack.engine("--latency", "0.15")
    submit(stack, "kill")
    first = stack.worker(8)
    stack.wait(lambda: stack.stats("kill")["done"] >= 3, 60, "some jobs")
    os.kill(first.pid, signal.SIGKILL)
    first.wait(10)
    leased = stack.stats("kill")["leased"]
    assert leased > 0
    stack.worker(8)
    stats = check_whole(stack, "kill")
    assert stats["failures"]["worker"] == leased
    assert 0 < stats["resumed"] <= leased
    assert stats["turns_saved"] > 0


def test_sigterm_gives_the_jobs_back_at_no_cost(stack: Stack):
    stack.engine("--latency", "1.0")
    submit(stack, "drain")
    first = stack.worker(8)
    stack.wait(lambda: stack.stats("drain")["leased"] == 8, 60, "eight leases")
    os.kill(first.pid, signal.SIGTERM)
    start = time.monotonic()
    assert first.wait(10) == 0
    assert time.monotonic() - start < 5.5
    stats = stack.stats("drain")
    assert (stats["leased"], stats["queued"]) == (0, JOBS - stats["done"])
    stack.worker(16)
    stats = check_whole(stack, "drain")
    assert not stats["failures"]
    assert stats["resumed"] > 0


def test_a_stopped_worker_that_wakes_up_writes_nothing(stack: Stack):
    stack.engine("--latency", "0.3")
    submit(stack, "zombie")
    first = stack.worker(8)
    stack.wait(lambda: stack.stats("zombie")["leased"] == 8, 60, "eight leases")
    os.kill(first.pid, signal.SIGSTOP)
    stack.worker(16)
    stack.wait(lambda: stack.stats("zombie")["done"] == JOBS, 90, "all jobs")
    os.kill(first.pid, signal.SIGCONT)
    stack.wait(lambda: stack.stats("zombie")["fenced"] > 0, 30, "a fenced write")
    check_whole(stack, "zombie")


def test_malformed_messages_take_no_worker_down(stack: Stack):
    stack.engine()
    worker = stack.worker(4)
    broker = redis.Redis.from_url(stack.redis_url)
    task = '{"body": "W10=", "headers": {"id": "x", "task": "rollq.play"}, "content-type": "application/json", '
    props = '"properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}}}'
    for junk in (b"x", b"{", b"[]", b"null", b'{"body": "!!!"}', b"\xff\xfe", b"[" * 100_000, (task + props).encode()):
        broker.lpush("rollq", junk)
    for wrong in ([], [None], ["no/such"], ["junk/shop.train.0/99"], [{"a": 1}], ["r/g/0", 1]):
        celery.Celery(broker=stack.redis_url).send_task("rollq.play", args=wrong, queue="rollq")
    broker.close()
    submit(stack, "junk")
    check_whole(stack, "junk")
    assert worker.poll() is None


def test_an_engine_that_goes_away_costs_nothing(stack: Stack):
    engine = stack.engine("--latency", "0.3")
    port = stack.engine_url.rsplit(":", 1)[1]
    submit(stack, "outage")
    stack.worker(8)
    stack.wait(lambda: stack.stats("outage")["leased"] == 8, 60, "eight leases")
    engine.kill()
    engine.wait(10)
    time.sleep(3)
    stack.start("engine", "--port", port)
    check_whole(stack, "outage")
    assert not stack.stats("outage")["failures"]
