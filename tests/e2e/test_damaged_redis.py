"""Garbage in every key of a run: errors name the key, and other runs are not disturbed."""

import os
import re
import signal
from collections.abc import Callable

import pytest

from rollq import Client, Job
from rollq.errors import PullTimeout, RollqError
from rollq.ledger.keys import Keys
from rollq.ledger.replies import State
from tests.e2e.stack import JOBS, Stack, check_all_delivered, submit_groups
from tests.ledger_of import ledger_of

GROUP = "shop.train.0"
KEYS: dict[str, Callable[[Keys], str]] = {
    "run": lambda keys: keys.meta,
    "sources": lambda keys: f"{keys.prefix}sources",
    "count": lambda keys: keys.count,
    "queued": lambda keys: keys.queued,
    "leased": lambda keys: keys.leased,
    "dead": lambda keys: keys.dead,
    "open": lambda keys: f"{keys.prefix}open:train",
    "ready": lambda keys: f"{keys.prefix}ready:train",
    "held": lambda keys: f"{keys.prefix}held:train",
    "group": lambda keys: keys.group(GROUP),
    "job": lambda keys: keys.job(f"{keys.run}/{GROUP}/0"),
    "journal": lambda keys: keys.journal(f"{keys.run}/{GROUP}/0"),
}
FILL = {
    b"hash": lambda redis, key: redis.hset(
        key, mapping=dict.fromkeys(redis.hkeys(key), b"\xff\x00 garbage")
    ),
    b"zset": lambda redis, key: redis.zadd(key, {b"\xff garbage": 0, b"a/b/c#d": 1, b"": 2}),
}
"""Garbage in a key that keeps its type."""


def use(client: Client) -> list[str]:
    """Do everything that a user does with a run. Returns the error texts."""
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
        except (PullTimeout, StopIteration):
            pass
        except RollqError as e:
            said.append(str(e))
    return said


@pytest.mark.parametrize("content", ["another type", "garbage inside"])
def test_garbage_in_every_key_of_a_run(stack: Stack, content: str) -> None:
    """One damaged run for each key, and a sound one, which the same worker plays and delivers."""
    clients = {name: Client(stack.redis_url, run=f"bad-{name}") for name in KEYS}
    for name, client in clients.items():
        client.submit([Job(env="shop", task=0, size=2, min_viable=1)])
        key, redis = KEYS[name](ledger_of(client).keys), ledger_of(client).redis
        kind = redis.type(key)
        if content == "garbage inside" and kind in FILL:
            FILL[kind](redis, key)
        else:
            redis.delete(key)
            redis.set(key, b"\xff\x00 garbage")
    stack.engine()
    worker = stack.worker(8)
    submit_groups(stack, "good")
    check_all_delivered(stack, "good", JOBS)
    for name, client in clients.items():
        for text in use(client):
            assert f"bad-{name}" in text, f"{name}: an error that does not say which run: {text}"
        if name not in ("count", "group", "job"):  # what these held is lost
            counts = ledger_of(client).redis.hkeys(ledger_of(client).keys.count)
            assert not [count for count in counts if count.startswith(b"failures:")], (
                f"{name}: damage cost a budget"
            )
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
        if "refused by the ledger" in line:  # the line names the key
            assert re.search(
                r"refused by the ledger: run bad-(\w+): [^:]+: rollq:\{bad-\1\}:\S+ (is|has|holds)",
                line,
            ), line


def test_garbage_in_every_entry_of_a_journal(stack: Stack) -> None:
    """Jobs whose journals were damaged start again, and the log names them; the others go on at
    their last turn.
    """
    engine = stack.engine("--latency", "2.0")
    submit_groups(stack, "journals")
    first = stack.worker(8)
    with Client(stack.redis_url, run="journals") as client:
        keys, redis = ledger_of(client).keys, ledger_of(client).redis

        def grown() -> list[str]:
            ids = (
                f"journals/shop.train.{task}/{sample}" for task in range(6) for sample in range(4)
            )
            leased = [job for job in ids if client.job(job).state is State.LEASED]
            return [job for job in leased if redis.llen(keys.journal(job)) >= 5]

        stack.wait(lambda: len(grown()) >= 6, 150, "six journals of five entries")
        os.kill(first.pid, signal.SIGKILL)
        first.wait(60)
        jobs = grown()
        other = redis.lindex(keys.journal(jobs[-1]), 3)
        damage: list[tuple[int, bytes]] = [
            (0, b"garbage"),
            (1, b""),
            (2, b"\x93\x02"),
            (3, os.urandom(64)),
            (4, other),
        ]
        for job, (index, blob) in zip(jobs, damage, strict=False):
            redis.lset(keys.journal(job), index, blob)
        stack.engine()
        stack.worker(12)
        check_all_delivered(stack, "journals", JOBS)
        log = stack.logs()
    assert engine.poll() is None
    for job in jobs[:4]:
        assert f"{job}: attempt 2: job:" in log, log
