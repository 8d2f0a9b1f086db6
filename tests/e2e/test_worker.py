"""What a run survives: real workers killed, stopped and started while they play."""

import os
import re
import signal
import time

import celery
import redis

from rollq import Client, Job
from tests.e2e.conftest import Stack, stop

GROUPS, SIZE = 6, 4
JOBS = GROUPS * SIZE


def submit(stack: Stack, run: str, **job) -> None:
    with Client(stack.redis_url, run=run) as client:
        client.submit([Job(env="shop", task=i, size=SIZE, **job) for i in range(GROUPS)])
        client.seal()


def written(stack: Stack, run: str) -> int:
    """Entries in the journals of what is being played."""
    with Client(stack.redis_url, run=run) as client:
        keys, redis = client.ledger.keys, client.ledger.redis
        jobs = [member.decode().rpartition("#")[0] for member in redis.zrange(keys.leased, 0, -1)]
        return sum(redis.llen(keys.journal(job)) for job in jobs)


def collect(stack: Stack, run: str) -> list[str]:
    """Take and acknowledge everything; the ids received, in order."""
    received = []
    with Client(stack.redis_url, run=run) as client:
        for batch in client.batches(groups=2, timeout=150):
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
    stack.engine("--latency", "1.0")
    submit(stack, "kill")
    first = stack.worker(8)
    stack.wait(lambda: written(stack, "kill") > 8 * 3, 150, "a whole turn of one job")
    os.kill(first.pid, signal.SIGKILL)
    first.wait(60)
    leased = stack.stats("kill")["leased"]
    assert leased > 0
    stack.engine()
    stack.worker(8)
    stats = check_whole(stack, "kill")
    assert stats["failures"]["worker"] == leased
    assert 0 < stats["resumed"] <= leased
    assert stats["turns_saved"] > 0


def test_sigterm_gives_the_jobs_back_at_no_cost(stack: Stack):
    stack.engine("--latency", "1.0")
    submit(stack, "drain")
    first = stack.worker(8)
    stack.wait(lambda: written(stack, "drain") >= 8 * 2, 150, "eight that have begun")
    calm = stop(first)
    stats = stack.stats("drain")
    assert (stats["leased"], stats["queued"]) == (0, JOBS - stats["done"]) or not calm
    stack.engine()
    stack.worker(16)
    stats = check_whole(stack, "drain")
    assert not stats["failures"] or not calm
    assert stats["resumed"] > 0


def test_a_stopped_worker_that_wakes_up_writes_nothing(stack: Stack):
    stack.engine("--latency", "0.3")
    submit(stack, "zombie")
    first = stack.worker(8)
    stack.wait(lambda: stack.stats("zombie")["leased"] == 8, 150, "eight leases")
    os.kill(first.pid, signal.SIGSTOP)
    stack.worker(16)
    stack.wait(lambda: stack.stats("zombie")["done"] == JOBS, 150, "all jobs")
    os.kill(first.pid, signal.SIGCONT)
    # Whoever comes first, a thread that writes or the heartbeat that tells it not to.
    refused = re.compile(rb"(no longer holds the|lost its) lease")
    log = first.log  # type: ignore[attr-defined]
    stack.wait(lambda: stack.stats("zombie")["fenced"] > 0 or refused.search(log.read_bytes()), 150, "a fenced write")
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
    engine = stack.engine("--latency", "30")
    port = stack.engine_url.rsplit(":", 1)[1]
    submit(stack, "outage")
    stack.worker(8)
    stack.wait(lambda: stack.stats("outage")["leased"] == 8, 150, "eight leases")
    engine.kill()
    engine.wait(60)
    time.sleep(3)
    stack.start("engine", "--port", port)
    check_whole(stack, "outage")
    assert not stack.stats("outage")["failures"]
