"""Real outages of a real Redis under real heartbeats and reapers, with all times a third of
production's.

A live worker keeps its leases through every outage. A dead worker's jobs come back in time, even if
no other worker was there when it died.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.backoff import EqualJitterBackoff

from rollq.job import Job
from rollq.ledger import constants
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.ledger.workers import reaping
from rollq.servers import connection, retry
from rollq.servers.connection import connect
from rollq_worker.process import reaper
from rollq_worker.process.attempts import attempt, leases
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.leases import Leases
from rollq_worker.process.reaper import Reaper
from tests.e2e.own_redis import OwnRedis
from tests.rollq.other_constants import renew_scripts
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import FakeBroker, live_worker
from tests.stalls import Stalls
from tests.waiting import until

SCALE = 3.0
TIMES = {
    constants: ["LEASE_S", "OUTAGE_S", "GRACE_S"],
    attempt: ["SHORT_WAIT_S"],
    leases: ["LEASE_S", "RENEW_EVERY_S", "TICK_S", "REPORT_S"],
    reaper: ["TICK_S", "LEAVE_ALONE_S", "SEND_S", "STAND_BY_S", "REGISTER_EVERY_S"],
    reaping: ["ROLE_S"],
}
LEASE_S = constants.LEASE_S / SCALE
LONG_S = LEASE_S + 2.0
"""An outage in which every lease would expire without the grace."""
JOBS = 20
NUMBERS = count()


@pytest.fixture(autouse=True)
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in TIMES.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) / SCALE)
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_S", connection.SOCKET_TIMEOUT_S / SCALE)
    monkeypatch.setattr(retry, "BACKOFF", EqualJitterBackoff(cap=2.0 / SCALE, base=0.1 / SCALE))
    renew_scripts(monkeypatch)


class Store(OwnRedis):
    """A Redis server that keeps its data when it is restarted."""

    def client(self) -> Any:
        """With production's patience, scaled."""
        return connect(self.url, patience_s=connection.PATIENCE_S / SCALE)

    def restart(self, after_s: float) -> None:
        self.stop(signal.SIGKILL)
        time.sleep(after_s)
        self.start()

    def freeze(self, for_s: float) -> None:
        self.stop(signal.SIGSTOP)
        time.sleep(for_s)
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path)
    yield found
    found.stop(signal.SIGKILL)


class Worker:
    """What keeps a worker's jobs alive, without their episodes."""

    def __init__(self, store: Store) -> None:
        self.client = store.client()
        self.ledger = Ledger(self.client, "r")
        self.broker = FakeBroker()
        self.leases = Leases(threading.Event())
        name = f"w{next(NUMBERS)}"
        self.reaper = Reaper(self.client, self.broker, lambda: live_worker(name))  # type: ignore[arg-type]
        self.held = ExitStack()
        self.attempts: list[Attempt] = []

    def start(self) -> None:
        self.leases.start()
        self.reaper.start()

    def claim(self) -> None:
        for task in range(JOBS):
            job = Job(run="r", group=f"g{task}", env="shop", task=task)
            self.ledger.submit([job], send_in_s=30.0)  # sooner, its message would count as lost
            found = self.ledger.claim(job.id, worker="w", token="t")
            assert isinstance(found, Claim)
            self.attempts.append(self.held.enter_context(self.leases.hold(self.ledger, found)))

    def die(self) -> None:
        self.leases.stop()
        self.reaper.stop()
        self.reaper.join(60)


@pytest.fixture
def workers(store: Store) -> Iterator[Callable[[], Worker]]:
    found: list[Worker] = []

    def start() -> Worker:
        found.append(Worker(store))
        found[-1].start()
        return found[-1]

    yield start
    for worker in found:
        worker.die()
        worker.held.close()
    for worker in found:
        worker.client.close()


@pytest.mark.parametrize("how", ["restarted soon", "restarted late", "frozen"])
def test_live_workers_lose_nothing(store: Store, workers: Callable[[], Worker], how: str) -> None:
    worker = workers()
    worker.claim()
    time.sleep(1.0)
    match how:
        case "restarted soon":
            store.restart(0.5)
        case "restarted late":
            store.restart(LONG_S)
        case "frozen":
            store.freeze(LONG_S)
    workers()  # a new one, whose reaper has seen nothing of it
    time.sleep(LEASE_S + 1.0)
    stats = reader(worker.ledger).stats()
    assert (stats["leased"], stats["expired"], worker.broker.sent) == (JOBS, 0, [])
    assert not any(attempt.lost.is_set() for attempt in worker.attempts)


@pytest.mark.parametrize("gap_s", [0.5, 4.0])
def test_the_only_worker_dies_and_its_successor_takes_over(
    store: Store, workers: Callable[[], Worker], gap_s: float
) -> None:
    worker = workers()
    worker.claim()
    time.sleep(1.0)
    worker.die()
    died = time.monotonic()
    time.sleep(gap_s)
    successor = workers()
    with Stalls() as stalls:
        until(lambda: len(successor.broker.sent) >= JOBS, 150)
    # A lease and 5 s, or half a lease when no worker was there for longer; and some time for a busy
    # machine.
    took, promised = time.monotonic() - died, max(LEASE_S + 5.0 / SCALE, gap_s + LEASE_S / 2)
    assert took < promised + 2.0 or stalls.seconds > 0.5
    assert reader(successor.ledger).stats()["expired"] == JOBS
