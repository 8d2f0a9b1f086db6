"""Every metric that the dashboard and the alerts name moves in a run on real processes with real
faults.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rollq import Budget, Client, Job
from rollq.ledger.constants import LEASE_S
from rollq.servers.connection import connect
from tests.conftest import free_port
from tests.deploy.monitoring import named_metrics
from tests.e2e.own_redis import OwnRedis
from tests.e2e.scrapes import Scrapes
from tests.e2e.stack import FAULTY_SHOP, Stack
from tests.ledger_of import ledger_of

LONG_S = 150


def worker(stack: Stack, scrapes: Scrapes, slots: int) -> subprocess.Popen[bytes]:
    port = free_port()
    flags = ("-c", str(slots), "--engine", stack.engine_url, "--metrics", str(port))
    process = stack.start("worker", *flags, env=FAULTY_SHOP)
    stack.wait(lambda: b"ready" in process.log.read_bytes(), LONG_S, "the worker")  # type: ignore[attr-defined]
    assert f"http://127.0.0.1:{port}/metrics" in process.log.read_text()  # type: ignore[attr-defined]
    scrapes.ports.add(port)
    process.port = port  # type: ignore[attr-defined]
    return process


def end(process: subprocess.Popen[bytes], scrapes: Scrapes, number: int) -> None:
    scrapes.ports.discard(process.port)  # type: ignore[attr-defined]
    process.send_signal(number)
    process.wait(60)


def submit(client: Client, folder: Path) -> None:
    """Groups that are played well, that stop early, whose environment breaks always, once, or never
    comes back.
    """
    once = {"fault": "error", "once": str(folder / "once")}
    client.submit(
        [
            *(Job(env="shop", task=task, size=2) for task in range(4)),
            Job(env="shop", task=4, size=2, group="short", budget=Budget(max_turns=2)),
            Job(env="faulty", task=5, group="broken", env_args={"fault": "error"}),
            Job(env="faulty", task=6, group="once", env_args=once),
            Job(
                env="faulty",
                task=7,
                group="stuck",
                env_args={"fault": "sleep"},
                budget=Budget(deadline_s=3),
            ),
        ]
    )


def train(client: Client) -> None:
    """A trainer takes a batch and is replaced by one of the same name, which acknowledges it."""
    client.publish(1)
    with client.consumer(name="trainer") as first:
        first.next(2, timeout=LONG_S)
        with client.consumer(name="trainer") as second:
            batch = second.next(2, timeout=LONG_S)
            assert batch is not None
            batch.ack()


def lose_workers(
    stack: Stack, scrapes: Scrapes, client: Client, first: subprocess.Popen[bytes]
) -> None:
    """A worker is stopped and one is killed while they play, and a third goes on with
    their jobs.
    """
    client.submit([Job(env="shop", task=task, group=f"late{task}") for task in range(10, 50)])
    second = worker(stack, scrapes, 4)
    both: list[int] = [process.port for process in (first, second)]  # type: ignore[attr-defined]
    stack.wait(
        lambda: all(
            scrapes.read(port)[("rollq_worker_in_flight", (("instance", str(port)),))] >= 2
            for port in both
        ),
        LONG_S,
        "both workers to play",
    )
    cancelled_at = 0.0

    def refused() -> float:
        """Cancels a group each second: an attempt that its worker's heartbeat ends first writes
        nothing more.
        """
        nonlocal cancelled_at
        if time.monotonic() - cancelled_at > 1 and (held := leased(client)):
            client.cancel(group=held[0].split("/")[1])
            cancelled_at = time.monotonic()
        return scrapes.value("rollq_fenced_total")

    stack.wait(refused, LONG_S, "a cancelled attempt's next write")
    stack.wait(
        lambda: scrapes.value("rollq_worker_unfinished_attempts_total"),
        LONG_S,
        "the end of such an attempt",
    )
    end(first, scrapes, signal.SIGTERM)
    end(second, scrapes, signal.SIGKILL)
    stack.wait(
        lambda: scrapes.value("rollq_reaper_lag_seconds") > 1,
        LONG_S,
        "jobs that nothing looks after",
    )
    worker(stack, scrapes, 8)
    stack.wait(
        lambda: scrapes.value("rollq_leases_expired_total"),
        LEASE_S + LONG_S,
        "the killed worker's leases",
    )
    stack.wait(
        lambda: scrapes.value("rollq_attempts_resumed_total"), LONG_S, "an attempt that goes on"
    )


def leased(client: Client) -> list[str]:
    held = ledger_of(client).redis.zrange(ledger_of(client).keys.leased, 0, -1)
    return [entry.decode().partition("#")[0] for entry in held]


@pytest.fixture
def scrapes(own_stack: Stack) -> Scrapes:
    scrapes = Scrapes()
    port = free_port()
    own_stack.start("metrics", "--port", str(port))
    scrapes.ports.add(port)

    def answers() -> bool:
        try:
            return bool(scrapes.read(port))
        except OSError:
            return False

    own_stack.wait(answers, LONG_S, "the metrics")
    return scrapes


def test_every_metric_of_the_dashboard_moves(
    own_stack: Stack, own_redis: OwnRedis, scrapes: Scrapes, tmp_path: Path
) -> None:
    engine = own_stack.engine("--latency", "0.3", "--mistakes", "0.3")
    first = worker(own_stack, scrapes, 6)
    redis: Any = connect(own_redis.url)
    with Client(own_redis.url, run="m") as client:
        client.publish(0)
        submit(client, tmp_path)
        own_stack.wait(lambda: scrapes.value("rollq_groups", state="ready") >= 4, LONG_S, "groups")
        train(client)
        own_stack.wait(
            lambda: scrapes.value("rollq_jobs_dead", **{"class": "env"}), LONG_S, "a dead job"
        )
        own_stack.wait(
            lambda: scrapes.value("rollq_worker_slots_lost"), LONG_S, "a slot that is lost"
        )
        redis.config_set("maxmemory", "1gb")
        redis.zadd("rollq:runs", {"damaged": 1})
        redis.set("rollq:{damaged}:count", "no hash")
        lose_workers(own_stack, scrapes, client, first)
        os.kill(engine.pid, signal.SIGKILL)
        own_stack.wait(
            lambda: scrapes.value("rollq_live_workers_without_engine"), LONG_S, "the engine's end"
        )
    redis.close()
    own_redis.stop(signal.SIGTERM)
    assert scrapes.value("rollq_ledger_up") == 0
    wanted = named_metrics() - {"up"}  # which is Prometheus's own
    assert len(wanted) > 40
    assert not {name for name in wanted if not scrapes.moved(name)}
    # Which never happens, and is on no dashboard.
    assert not scrapes.moved("rollq_duplicates_total")
