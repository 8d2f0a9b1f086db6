"""Garbage under every name that a run has in Redis: clear errors that say where, and nobody else disturbed."""

import os
import re
import signal
import time
from collections.abc import Callable

import pytest

from rollq import Client, Job
from rollq.errors import PullTimeout, RollqError
from rollq.ledger.keys import Keys
from rollq.ledger.replies import State
from tests.e2e.conftest import Stack
from tests.e2e.test_worker import check_whole, submit

GROUP = "shop.train.0"
KEYS: dict[str, Callable[[Keys], str]] = {
    "run": lambda keys: keys.meta,
    "sources": lambda keys: keys.sources,
    "count": lambda keys: keys.count,
    "queued": lambda keys: keys.queued,
    "leased": lambda keys: keys.leased,
    "dead": lambda keys: keys.dead,
    "open": lambda keys: keys.open("train"),
    "ready": lambda keys: keys.ready("train"),
    "held": lambda keys: keys.held("train"),
    "group": lambda keys: keys.group(GROUP),
    "job": lambda keys: keys.job(f"{keys.run}/{GROUP}/0"),
    "journal": lambda keys: keys.journal(f"{keys.run}/{GROUP}/0"),
}
FILL = {
    b"hash": lambda redis, key: redis.hset(key, mapping=dict.fromkeys(redis.hkeys(key), b"\xff\x00 garbage")),
    b"zset": lambda redis, key: redis.zadd(key, {b"\xff garbage": 0, b"a/b/c#d": 1, b"": 2}),
}
"""Garbage in a key of the type that it should be."""


def use(client: Client) -> list[str]:
    """Everything a user does with a run; what was said by those calls that were refused."""
    job = f"{client.run}/{GROUP}/0"
    calls: list[Callable[[], object]] = [
        client.stats,
        client.dead,
        lambda: client.job(job),
        lambda: client.trajectory(job),
        lambda: client.submit([Job(env="shop", task=0, size=2, min_viable=1)]),
        lambda: client.submit([Job(env="shop", task=1, size=2)]),
        client.seal,
        lambda: next(client.batches(groups=1, timeout=0)).ack(),
    ]
    said = []
    for call in calls:
        try:
            call()
        except PullTimeout:
            pass
        except StopIteration:
            pass
        except RollqError as e:
            said.append(str(e))
    return said


@pytest.mark.parametrize("content", ["another type", "garbage inside"])
def test_garbage_in_every_key_of_a_run(stack: Stack, content: str) -> None:
    """As many damaged runs as there are keys, and a sound one: that one is played and delivered, by the same worker."""
    clients = {name: Client(stack.redis_url, run=f"bad-{name}") for name in KEYS}
    for name, client in clients.items():
        client.submit([Job(env="shop", task=0, size=2, min_viable=1)])
        key, redis = KEYS[name](client.ledger.keys), client.ledger.redis
        kind = redis.type(key)
        if content == "garbage inside" and kind in FILL:
            FILL[kind](redis, key)
        else:
            redis.delete(key)
            redis.set(key, b"\xff\x00 garbage")
    stack.engine()
    worker = stack.worker(8)
    submit(stack, "good")
    check_whole(stack, "good")
    for name, client in clients.items():
        for text in use(client):
            assert f"bad-{name}" in text, f"{name}: an error that does not say which run: {text}"
        if name not in ("count", "group", "job"):  # what is lost there cannot be known
            assert not client.stats()["failures"], f"{name}: damage cost a budget"
        client.close()
    for name in ("queued", "count", "job"):
        done = stack.run("stats", "--run", f"bad-{name}")
        assert done.returncode in (0, 1)
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or done.stderr.startswith("rollq:")
    assert worker.poll() is None
    log = worker.log.read_text(errors="replace")  # type: ignore[attr-defined]
    assert "Traceback" not in log and "raised unexpected" not in log, log
    for line in log.splitlines():
        if "refused by the ledger" in line:  # it says where
            assert re.search(r"refused by the ledger: run bad-(\w+): \w+: rollq:\{bad-\1\}:\S+ is", line), line


def test_garbage_in_every_key_is_named(stack: Stack) -> None:
    """A key of another type is named in the error, and left as it is."""
    for name in ("run", "queued", "leased", "dead", "open", "ready", "held"):
        with Client(stack.redis_url, run=f"bad-{name}") as client:
            client.submit([Job(env="shop", task=0, size=2, min_viable=1)])
            key, redis = KEYS[name](client.ledger.keys), client.ledger.redis
            redis.delete(key)
            redis.set(key, b"garbage")
            said = use(client)
            assert any(key in text for text in said), said
            assert redis.get(key) == b"garbage"  # evidence


def test_garbage_in_every_entry_of_a_journal(stack: Stack) -> None:
    """Jobs whose journals were damaged under a dead worker begin again, by name; the others go on where they were."""
    engine = stack.engine("--latency", "2.0")
    submit(stack, "journals")
    first = stack.worker(8)
    with Client(stack.redis_url, run="journals") as client:
        keys, redis = client.ledger.keys, client.ledger.redis

        def grown() -> list[str]:
            ids = (f"journals/shop.train.{task}/{sample}" for task in range(6) for sample in range(4))
            leased = [job for job in ids if client.job(job).state is State.LEASED]
            return [job for job in leased if redis.llen(keys.journal(job)) >= 5]

        stack.wait(lambda: len(grown()) >= 6, 150, "six journals of five entries")
        os.kill(first.pid, signal.SIGKILL)
        first.wait(60)
        jobs = grown()
        other = redis.lindex(keys.journal(jobs[-1]), 3)
        damage: list[tuple[int, bytes]] = [(0, b"garbage"), (1, b""), (2, b"\x93\x01"), (3, os.urandom(64)), (4, other)]
        for job, (index, blob) in zip(jobs, damage, strict=False):
            redis.lset(keys.journal(job), index, blob)
        stack.engine()
        stack.worker(12)
        check_whole(stack, "journals")
        log = stack.logs()
    assert engine.poll() is None
    for job in jobs[:4]:
        assert f"{job}: attempt 2: job:" in log, log


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "playing"])
def test_a_worker_outlives_a_redis_that_takes_no_writes(stack: Stack, busy: bool) -> None:
    """As while a replica takes over: what Celery sees of it is no lost connection, and its own answer is to end."""
    stack.engine("--latency", "0.1")
    worker = stack.worker(2)
    with Client(stack.redis_url, run="r") as client:
        if busy:
            client.submit([Job(env="shop", task=task, size=2) for task in range(4)])
            stack.wait(lambda: client.stats()["claims"], 150, "a claim")
        client.ledger.redis.replicaof("127.0.0.1", "1")
        try:
            time.sleep(3.0)
        finally:
            client.ledger.redis.replicaof("NO", "ONE")
        client.submit([Job(env="shop", task=9)])
        stack.wait(lambda: client.stats()["done"] == 1 + 4 * 2 * busy, 150, "the end")
        assert not client.stats()["failures"]
    assert worker.poll() is None
    said = worker.log.read_text()  # type: ignore[attr-defined]
    assert "Unrecoverable" not in said
    assert "reaper failed" not in said
