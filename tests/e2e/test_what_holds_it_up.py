"""Real faults, and whether `rollq top` and `rollq stats --late` name them (docs/operate.md)."""

import json
import shutil
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import ResponseError

from rollq import Client, Job, cli
from rollq.commands.connect import ping_redis
from rollq.ledger.keys import WORKERS
from rollq.ledger.workers.live_workers import AWAY, PAUSED, READY
from rollq.servers.connection import connect
from rollq.servers.health import Level, findings
from rollq.snapshot.fleet import FleetSnapshot, read_fleet
from rollq.snapshot.holdups import fleet_holdup
from rollq.snapshot.late import late_groups
from rollq.snapshot.rollouts import RolloutReader
from tests.e2e.own_redis import OwnRedis
from tests.e2e.stack import FAULTY_SHOP, Stack
from tests.waiting import until


class Operator:
    """A person who looks at the fleet."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url, patience_s=0)
        self._fleet = partial(read_fleet, self._redis)
        self.seen: FleetSnapshot = self._fleet()

    def sees(self, text: str) -> bool:
        """Whether `rollq top` says so now."""
        self.seen = self._fleet()
        return text in fleet_holdup(self.seen)

    def sees_none(self) -> bool:
        """True when jobs are played and nothing holds them up."""
        self.seen = self._fleet()
        return self.seen.in_flight > 0 and not fleet_holdup(self.seen)

    def waits(self, run: str) -> set[str]:
        """What `rollq stats --late` says that the unfinished jobs of the oldest groups wait for."""
        reader = RolloutReader(self._redis, run)
        groups = late_groups(reader, reader.fleet(5), 5)
        return {job.waits_for for group in groups for job in group.jobs}


def submit(stack: Stack, run: str, groups: int = 16, **job: Any) -> None:
    broker = job.pop("broker", None)
    with Client(stack.redis_url, run=run, broker_url=broker) as client:
        jobs = [
            Job(run=run, group=f"g{n}", size=2, sample=sample, env="shop", task=n, **job)
            for n in range(groups)
            for sample in (0, 1)
        ]
        client.submit(jobs)


def tell_engine(stack: Stack, path: str, **body: object) -> None:
    request = urllib.request.Request(
        f"{stack.engine_url}/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    assert urllib.request.urlopen(request, timeout=30).status == 200


def test_an_engine_that_is_paused_then_gone_and_a_worker_that_is_killed(stack: Stack) -> None:
    operator = Operator(stack.redis_url)
    submit(stack, "r")
    until(lambda: operator.sees("32 queued jobs, 0 being played, and no worker is alive"))
    engine = stack.engine("--latency", "2")
    worker = stack.worker(4)
    until(lambda: operator.sees_none() and operator.seen.turns_s and operator.seen.tokens_s)
    assert [(found.url, found.state) for found in operator.seen.engines] == [
        (stack.engine_url, READY)
    ]
    assert "engine" in operator.waits("r")

    tell_engine(stack, "pause_generation", mode="in_place")
    until(lambda: operator.sees(f"the engine {stack.engine_url} is paused, as for new weights"))
    assert operator.seen.engines[0].state == PAUSED and "engine (paused)" in operator.waits("r")
    tell_engine(stack, "continue_generation")
    until(operator.sees_none)

    engine.kill()
    until(lambda: operator.sees(f"the engine {stack.engine_url} is away: start it"))
    assert operator.seen.engines[0].state == AWAY and "engine (away)" in operator.waits("r")

    worker.kill()
    until(lambda: operator.sees("nothing was heard of "))
    assert "a worker of which nothing is heard" in operator.waits("r")
    until(lambda: operator.sees("no worker is alive: start `rollq worker`"))
    assert list(operator.seen.lost) and not operator.seen.workers


def test_a_broker_that_is_gone(stack: Stack, tmp_path: Path) -> None:
    """It holds messages only, so the ledger's Redis shows nothing of it."""
    folder = tmp_path / "broker"
    folder.mkdir()
    broker, operator = OwnRedis(folder), Operator(stack.redis_url)
    try:
        stack.engine("--latency", "0.2")
        stack.worker(2, "--broker", broker.url)
        submit(stack, "r", 32, broker=broker.url)
        until(operator.sees_none)
    finally:
        broker.process.kill()
        broker.process.wait(60)
    until(lambda: operator.sees("the live workers get no messages of them"))


def test_an_environment_that_does_not_return(stack: Stack) -> None:
    operator = Operator(stack.redis_url)
    stack.engine()
    process = stack.start("worker", "-c", "2", "--engine", stack.engine_url, env=FAULTY_SHOP)
    stack.wait(lambda: b"ready" in process.log.read_bytes(), 150, "the worker")  # type: ignore[attr-defined]
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(run="r", group="g", env="faulty", task=0, env_args={"fault": "sleep"})])
    until(lambda: any(wait.startswith("environment.step(") for wait in operator.waits("r")))


def test_a_redis_with_a_full_disk(own_redis: OwnRedis, own_stack: Stack) -> None:
    """It refuses writes, and PING as well. A folder that is gone is as good as a full one."""
    operator = Operator(own_redis.url)
    submit(own_stack, "r", 1)
    client = connect(own_redis.url, patience_s=0)
    client.hset(WORKERS, "dead", "not a worker's entry")  # a look at the workers would remove it
    client.config_set("save", "3600 1")
    shutil.rmtree(own_redis.folder)
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    with pytest.raises(ResponseError, match="MISCONF"):
        client.ping()
    client.close()
    assert operator.sees("Redis cannot write to its disk (rdb_last_bgsave_status: err)")
    ping_redis(own_redis.url)
    assert cli.main(["top", "--once", "--redis", own_redis.url]) == 0
    found = {one.name: one for one in findings(connect(own_redis.url, patience_s=0))}
    assert (
        found["redis persistence"].level is Level.FAIL
        and "full disk" in found["redis persistence"].remedy
    )
