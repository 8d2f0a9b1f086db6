"""An attempt as a journal: its deadline's clock, and its writes while Redis is away, full or has lost data."""

import threading

import pytest
import redis

from rollq.errors import FailureClass, Fenced, Unwritable
from rollq.ledger.constants import LEASE_S
from rollq.ledger.ledger import Ledger
from rollq.trajectory import Header
from rollq_worker.failures import DeadlineExceeded, Drained
from rollq_worker.process import attempt as attempt_module
from rollq_worker.process.leases import Leases
from tests.clock import Clock
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import FailsFirst, claim

HEADER = Header(attempt=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(attempt_module, "time", clock := Clock())
    return clock


def test_the_deadline_stands_still_while_the_engine_is_away(ledger: Ledger, clock: Clock) -> None:
    outages = [100.0]  # before the claim: these do not count
    with Leases(threading.Event(), lambda: sum(outages)).hold(ledger, claim(ledger, deadline_s=200.0)) as attempt:
        outages.append(3000.0)
        clock.ahead += 250.0
        attempt.check()
        assert attempt.stopped_s == 3000.0 and 2900.0 < attempt.left_s <= 2950.0
        outages.pop()
        with pytest.raises(DeadlineExceeded, match=r"deadline of 200 s"):
            attempt.check()


def test_a_lost_lease_stops_it(ledger: Ledger) -> None:
    leases = Leases(threading.Event())
    with leases.hold(ledger, claim(ledger)) as attempt:
        ledger.release("r/g0/0", 1)
        leases.tick()
        with pytest.raises(Fenced):
            attempt.check()


def test_redis_may_be_away_or_full_for_long(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("FIRST_PAUSE_S", "RECONNECT_PAUSE_S"):
        monkeypatch.setattr(f"rollq.ledger.connection.{pause}", 0.01)
    monkeypatch.setattr(attempt_module, "SHORT_WAIT_S", 0.0)
    with Leases(threading.Event()).hold(ledger, claim(ledger)) as attempt:
        errors = [redis.ConnectionError("refused"), Unwritable("full"), redis.TimeoutError("slow"), Unwritable("x")]
        monkeypatch.setattr(ledger, "append", FailsFirst(ledger.append, *errors))
        attempt.open(HEADER)
        assert len(ledger.journal("r/g0/0")) == 1
        assert attempt.stopped_s > 0.03  # which its deadline does not see


def test_a_wait_for_redis_past_the_deadline_costs_no_lease(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "SHORT_WAIT_S", 0.01)
    monkeypatch.setattr("rollq.ledger.connection.LONGEST_PAUSE_S", 0.01)
    leases, has_room, asked, append = Leases(threading.Event()), threading.Event(), threading.Event(), ledger.append

    def append_if_room(*args: object) -> None:
        asked.set()
        if not has_room.is_set():
            raise Unwritable("full")
        append(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger, "append", append_if_room)
    with leases.hold(ledger, claim(ledger, deadline_s=500.0)) as attempt:
        thread = threading.Thread(target=attempt.open, args=(HEADER,))
        thread.start()
        assert asked.wait(60)
        clock.ahead += 600.0
        assert not attempt.overdue  # else its lease would not be renewed
        before = ledger.scripts.now()
        leases.tick()
        state = reader(ledger).job("r/g0/0")
        assert state is not None and state.lease_until is not None and state.lease_until >= before + LEASE_S
        has_room.set()
        thread.join(60)
        attempt.check()
    assert len(ledger.journal("r/g0/0")) == 1


def test_waiting_for_redis_ends_when_the_attempt_must_stop(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    draining = threading.Event()
    with Leases(draining).hold(ledger, claim(ledger)) as attempt:

        def refused(*args: object) -> None:
            draining.set()  # here: while it is being waited for
            raise redis.ConnectionError("refused")

        monkeypatch.setattr(ledger, "append", refused)
        with pytest.raises(Drained):
            attempt.open(HEADER)


def test_a_journal_that_lost_its_tail_is_written_again(ledger: Ledger) -> None:
    with Leases(threading.Event()).hold(ledger, claim(ledger)) as attempt:
        attempt.open(HEADER)
        whole = ledger.journal("r/g0/0")
        ledger.redis.delete(ledger.keys.journal("r/g0/0"))
        attempt._append(b"next")
        assert ledger.journal("r/g0/0") == [*whole, b"next"]


def test_an_attempt_is_abandoned_although_its_record_cannot_be_read(ledger: Ledger) -> None:
    with Leases(threading.Event()).hold(ledger, claim(ledger)) as attempt:
        ledger.redis.set(ledger.keys.job("r/g0/0"), "garbage")
        attempt.abandon(FailureClass.ENV, "nothing in 60 s")
        assert attempt.abandoned_at is not None
        with pytest.raises(Fenced):
            attempt.check()
