"""The reaper's tick: what is due is published and confirmed, whatever else is broken."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from rollq.errors import Unwritable
from rollq.job import Job
from rollq.ledger import constants
from rollq.ledger.connection import connect
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import OUTAGE_STAMP, RUNS
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq_worker.process import reaper as reaper_module
from rollq_worker.process.reaper import Reaper
from tests.clock import Clock
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import FakePublisher


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    client = connect(redis_url)
    yield client
    client.close()


def submit(client: "redis.Redis", run: str, jobs: int = 1) -> Ledger:
    ledger = Ledger(client, run)
    for task in range(jobs):
        ledger.submit([Job(run=run, group=f"g{task}", env="shop", task=task)], publish_in_s=0)
    return ledger


def test_whatever_is_due_is_published_and_confirmed(client: "redis.Redis") -> None:
    ledger, broker = submit(client, "r", 250), FakePublisher()
    reaper = Reaper(client, broker)  # type: ignore[arg-type]
    assert reaper.tick() == 250
    assert len(set(broker.published)) == 250
    assert reaper.tick() == 0
    scores = [score for _, score in client.zrange(ledger.keys.queued, 0, -1, withscores=True)]
    assert min(scores) > ledger.scripts.now() + 500


def test_what_the_broker_did_not_take_comes_again(client: "redis.Redis") -> None:
    ledger, broker = submit(client, "r", 4), FakePublisher(takes=3)
    assert Reaper(client, broker).tick() == 3  # type: ignore[arg-type]
    first, second, *_ = [score for _, score in client.zrange(ledger.keys.queued, 0, -1, withscores=True)]
    assert first < ledger.scripts.now() + 10 and second > ledger.scripts.now() + 500


def test_while_nobody_takes_messages_they_do_not_pile_up(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "MOST_MESSAGES", 10)
    monkeypatch.setattr(reaper_module, "LOOK_EVERY_S", 0.0)
    ledger, broker = submit(client, "r", 50), FakePublisher()
    reaper = Reaper(client, broker)  # type: ignore[arg-type]

    def ten_minutes_pass() -> int:
        for job_id in client.zrange(ledger.keys.queued, 0, -1):
            client.zadd(ledger.keys.queued, {job_id: 1})
        return reaper.tick()

    assert [ten_minutes_pass() for _ in range(6)] == [50, 50, 50, 0, 0, 0]
    broker.published.clear()  # a worker has come
    assert ten_minutes_pass() == 50


def test_a_run_that_cannot_be_read_holds_up_no_other(client: "redis.Redis", caplog: pytest.LogCaptureFixture) -> None:
    broken = submit(client, "a")
    submit(client, "b")
    client.set(broken.keys.leased, "junk")
    broker = FakePublisher()
    reaper = Reaper(client, broker)  # type: ignore[arg-type]
    assert reaper.tick() == 1
    assert broker.published == ["b/g0/0"]
    assert f"run a: LedgerError: run a: snapshot: {broken.keys.leased} is a string" in caplog.text
    assert "rollq drop --run RUN --whole-run --yes" in caplog.text
    before = len(caplog.records)
    reaper.tick()
    assert len(caplog.records) == before  # it is left alone for a while


def test_many_runs_share_one_stamp_and_those_that_are_over_are_left_alone(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "TICK_S", 1000.0)  # this one takes less, so that one stamp is enough
    reaper = Reaper(client, FakePublisher())  # type: ignore[arg-type]
    for number in range(300):
        ledger = submit(client, f"r{number}")
        if number % 2:
            DeadLetters(client, f"r{number}").cancel(f"r{number}/g0/0")
            ledger.seal()
    stamps = len(calls := spied(reaper._outages, "stamp", monkeypatch))
    assert reaper.tick() == 150
    assert len(calls) - stamps == 1
    reaped = spied(Ledger, "reap", monkeypatch)
    reaper.tick()
    assert len(reaped) == 150
    before = {name: run.ledger for name, run in reaper._runs.items()}
    reaper.tick()
    assert {name: run.ledger for name, run in reaper._runs.items()} == before  # built once


def spied(of: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls, which are carried out as well."""
    calls: list[object] = []
    real = getattr(of, name)

    def noted(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(of, name, noted)
    return calls


def test_a_tick_that_takes_long_is_no_outage(client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing takes its time with every run; the last one's leases expire all the same."""
    monkeypatch.setattr(constants, "OUTAGE_S", 300.0)
    monkeypatch.setattr(constants, "GRACE_S", 1000.0)
    clock = Clock()
    monkeypatch.setattr(reaper_module, "time", clock)

    class Slow(FakePublisher):
        def publish(self, job_ids: Sequence[str]) -> list[str]:
            clock.ahead += 100.0
            client.hincrbyfloat(OUTAGE_STAMP, "beat", -100.0)  # to Redis's scripts the same as a later time
            return super().publish(job_ids)

    ledgers = [submit(client, f"r{number}") for number in range(8)]
    reaper = Reaper(client, Slow())  # type: ignore[arg-type]
    client.hset(OUTAGE_STAMP, mapping={"beat": ledgers[0].scripts.now(), "grace": 0})
    last = submit(client, "z")
    assert isinstance(last.claim("z/g0/0", worker="w", token="t"), Claim)
    client.zadd(last.keys.leased, {"z/g0/0#1": 1})
    assert reaper.tick() == 9
    assert reader(last).stats()["expired"] == 1


def test_a_list_of_runs_that_cannot_be_read(client: "redis.Redis", caplog: pytest.LogCaptureFixture) -> None:
    ledger, broker = submit(client, "a"), FakePublisher()
    reaper = Reaper(client, broker)  # type: ignore[arg-type]
    assert reaper.tick() == 1
    client.set(RUNS, "garbage")
    DeadLetters(client, "a").cancel("a/g0/0")
    DeadLetters(client, "a").requeue("a/g0/0")
    assert reaper.tick() == 1  # the runs that it knows go on
    assert f"{RUNS}: " in caplog.text and "Delete that key" in caplog.text
    before = len(caplog.records)
    reaper.tick()
    assert len(caplog.records) == before  # not at every tick
    client.delete(RUNS)
    assert reaper.tick() == 0
    ledger.submit([Job(run="a", group="g0", env="shop", task=0)])  # known, and listed again
    DeadLetters(client, "a").cancel("a/g0/0")
    DeadLetters(client, "a").requeue("a/g0/0")
    assert reaper.tick() == 1
    DeadLetters(client, "a").forget_run()
    assert reaper.tick() == 0


def test_it_outlives_everything_and_says_that_it_is_alive(
    client: "redis.Redis", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reaper_module, "TICK_S", 0.01)
    alive = tmp_path / "alive"
    reaper = Reaper(client, FakePublisher(), alive)  # type: ignore[arg-type]
    errors = [redis.ConnectionError("refused"), Unwritable("full"), ValueError("a bug")]
    existed = []

    def tick() -> int:
        existed.append(alive.exists())
        if errors:
            raise errors.pop(0)
        if existed[-1]:
            reaper.stop()
        return 0

    monkeypatch.setattr(reaper, "tick", tick)
    reaper.start()
    reaper.join(60)
    assert existed == [False] * 4 + [True]
    assert "reaper: ConnectionError: refused" in caplog.text and "a bug" in caplog.text
