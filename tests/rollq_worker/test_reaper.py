"""The reaper's tick: what is due is published and confirmed, whatever else is broken."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from rollq.connection import connect
from rollq.errors import Unwritable
from rollq.job import Job
from rollq.ledger import Ledger
from rollq_worker import reaper as reaper_module
from rollq_worker.reaper import Reaper


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    client = connect(redis_url)
    yield client
    client.close()


class Broker:
    """Takes what it is given, or so many and no more."""

    def __init__(self, takes: int = 1 << 30) -> None:
        self.takes = takes
        self.published: list[str] = []

    def publish(self, job_ids: Sequence[str]) -> list[str]:
        taken = list(job_ids)[: self.takes]
        self.published += taken
        return taken

    def backlog(self) -> int | None:
        return len(self.published)


def submit(client: "redis.Redis", run: str, jobs: int = 1) -> Ledger:
    ledger = Ledger(client, run)
    for task in range(jobs):
        ledger.submit([Job(run=run, group=f"g{task}", env="shop", task=task)], publish_in_s=0)
    return ledger


def test_whatever_is_due_is_published_and_confirmed(client: "redis.Redis") -> None:
    ledger, broker = submit(client, "r", 250), Broker()
    reaper = Reaper(client, broker)  # type: ignore[arg-type]
    assert reaper.tick() == 250
    assert len(set(broker.published)) == 250
    assert reaper.tick() == 0
    assert min(score for _, score in client.zrange(ledger.keys.queued, 0, -1, withscores=True)) > ledger.now() + 500


def test_what_the_broker_did_not_take_comes_again(client: "redis.Redis") -> None:
    ledger, broker = submit(client, "r", 4), Broker(takes=3)
    assert Reaper(client, broker).tick() == 3  # type: ignore[arg-type]
    scores = sorted(score - ledger.now() for _, score in client.zrange(ledger.keys.queued, 0, -1, withscores=True))
    assert scores[0] < 10 and scores[1] > 500


def test_a_broken_run_holds_up_no_other(client: "redis.Redis", caplog: pytest.LogCaptureFixture) -> None:
    broken = submit(client, "a")
    submit(client, "b")
    client.delete(broken.keys.leased)
    client.set(broken.keys.leased, "junk")
    broker = Broker()
    assert Reaper(client, broker).tick() == 1  # type: ignore[arg-type]
    assert broker.published == ["b/g0/0"]
    assert "run a: LedgerError" in caplog.text


def test_it_outlives_everything_and_says_that_it_is_alive(
    client: "redis.Redis", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reaper_module, "TICK_S", 0.01)
    alive = tmp_path / "alive"
    reaper = Reaper(client, Broker(), alive)  # type: ignore[arg-type]
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
    reaper.join(10)
    assert existed == [False] * 4 + [True]
    assert "reaper: ConnectionError: refused" in caplog.text and "a bug" in caplog.text
