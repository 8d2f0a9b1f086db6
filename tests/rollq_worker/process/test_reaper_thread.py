"""The reaper's thread: one of all workers reaps, and each says that it is alive only
while it is.
"""

from pathlib import Path

import pytest
import redis

from rollq.errors import Unwritable
from rollq.ledger.keys import REAPER, WORKERS
from rollq.ledger.workers import reaping
from rollq.ledger.workers.live_workers import live_workers
from rollq_worker.process import reaper as reaper_module
from rollq_worker.process.reaper import Reaper
from tests.rollq_worker.process.ledgers import FakeBroker, live_worker
from tests.waiting import until


class Counted(Reaper):
    """Counts its ticks."""

    def __init__(
        self,
        client: "redis.Redis",
        name: str,
        alive: Path | None = None,
        loop_is_alive: bool = True,
    ) -> None:
        worker = live_worker(name)
        super().__init__(client, FakeBroker(), lambda: worker, alive, lambda: loop_is_alive)  # type: ignore[arg-type]
        self.ticks = 0

    def tick(self) -> int:
        self.ticks += 1
        return super().tick()

    def end(self) -> None:
        self.stop()
        self.join(60)


def test_one_of_many_reaps_and_all_are_live(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "TICK_S", 0.02)
    reapers = [Counted(client, name) for name in "abcd"]
    for reaper in reapers:
        reaper.start()
    until(lambda: max(reaper.ticks for reaper in reapers) > 5)
    until(lambda: len(live_workers(client)) == 4)
    (busy,) = (reaper for reaper in reapers if reaper.ticks)
    busy.end()
    reaped = busy.ticks
    busy.leave()
    until(lambda: client.get(REAPER) not in (None, busy._name.encode()))
    assert [worker.name for worker in live_workers(client)] == [
        r._name for r in reapers if r is not busy
    ]
    for reaper in reapers:
        reaper.end()
    assert busy.ticks == reaped


def test_a_dead_reaper_is_replaced(client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "TICK_S", 0.02)
    monkeypatch.setattr(reaping, "ROLE_S", 0.5)
    first, second = Counted(client, "a"), Counted(client, "b")
    first.start()
    until(lambda: first.ticks)
    second.start()
    first.end()  # without a word
    until(lambda: second.ticks)
    second.end()
    assert client.hexists(WORKERS, "a")  # until its entry is too old


def test_it_leaves_as_far_as_it_can(
    client: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    reaper = Counted(client, "a")
    reaper.turn()
    client.delete(REAPER)
    client.hset(REAPER, "junk", 1)
    reaper.leave()
    assert live_workers(client) == []
    assert "not signed off: LedgerError: rollq:reaper" in caplog.text


def test_it_outlives_everything_and_says_that_it_is_alive(
    client: "redis.Redis",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reaper_module, "TICK_S", 0.01)
    alive = tmp_path / "alive"
    reaper = Counted(client, "a", alive)
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
    assert (
        "reaper: nothing is reaped: ConnectionError: refused" in caplog.text
        and "a bug" in caplog.text
    )


def test_one_that_stands_by_is_alive_too(
    client: "redis.Redis", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping.ReaperRole, "take", lambda self: 0.01)
    alive = tmp_path / "alive"
    monkeypatch.setattr(reaper_module, "STAND_BY_S", 0.0)
    monkeypatch.setattr(reaper_module, "TICK_S", 0.01)
    reaper = Counted(client, "a", alive)
    reaper.start()
    until(alive.exists)
    reaper.end()
    assert reaper.ticks == 0


def test_a_worker_whose_loop_is_stuck_does_not_look_alive(
    client: "redis.Redis", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "TICK_S", 0.01)
    alive = tmp_path / "alive"
    reaper = Counted(client, "a", alive, loop_is_alive=False)
    reaper.start()
    until(lambda: reaper.ticks > 5)
    reaper.end()
    assert not alive.exists()
