"""Leases: renewed in time, moved on while the engine is away, ended from outside when nothing else can."""

import threading
import time
from collections.abc import Callable, Iterator
from math import inf

import pytest
import redis

from rollq.errors import EnvironmentFailure, FailureClass, Fenced, Unwritable, UserFailure
from rollq.job import Budget, Job
from rollq.ledger.connection import connect
from rollq.ledger.ledger import Claim, Ledger
from rollq.trajectory import Header
from rollq_worker.failures import DeadlineExceeded, Drained
from rollq_worker.process import leases as leases_module
from rollq_worker.process.leases import LEASE_S, Leases, release_all
from rollq_worker.process.time_limits import Abandoned
from tests.clock import Clock

HEADER = Header(attempt=1)


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    client = connect(redis_url)
    yield Ledger(client, "r")
    client.close()


def claim(ledger: Ledger, task: int = 0, deadline_s: float = 1800.0) -> Claim:
    job = Job(run="r", group=f"g{task}", env="shop", task=task, budget=Budget(deadline_s=deadline_s))
    ledger.submit([job])
    claimed = ledger.claim(job.id, worker="w", token=f"t{task}")
    assert isinstance(claimed, Claim)
    return claimed


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the attempts and their steps."""
    clock = Clock()
    monkeypatch.setattr("rollq_worker.process.leases.time", clock)
    monkeypatch.setattr("rollq_worker.process.time_limits.time", clock)
    return clock


class Away:
    """A clock of outages."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class TestDeadline:
    def test_it_stands_still_while_the_engine_is_away(self, ledger: Ledger, clock: Clock) -> None:
        away = Away()
        away.seconds = 100.0  # before the claim: nothing to this attempt
        leases = Leases(threading.Event(), away)
        with leases.hold(ledger, claim(ledger, deadline_s=200.0)) as attempt:
            away.seconds += 3000.0
            clock.ahead += 250.0
            attempt.check()
            assert attempt.stopped_s == 3000.0 and 2900.0 < attempt.left_s <= 2950.0
            away.seconds -= 3000.0
            with pytest.raises(DeadlineExceeded, match=r"deadline of 200 s"):
                attempt.check()

    def test_the_ledger_moves_its_own_deadline_with_it(self, ledger: Ledger) -> None:
        away = Away()
        leases = Leases(threading.Event(), away)
        with leases.hold(ledger, claim(ledger, deadline_s=5.0)):
            state = ledger.job("r/g0/0")
            assert state is not None and state.lease_until is not None
            assert state.lease_until - ledger.now() <= 5.0
            away.seconds = 60.0
            before = ledger.now()
            leases.tick()
            state = ledger.job("r/g0/0")
            assert state is not None and state.lease_until is not None
            assert before + LEASE_S <= state.lease_until <= ledger.now() + LEASE_S

    def test_the_lease_outlives_it_so_that_the_attempt_can_say_why(
        self, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leases_module, "REPORT_S", 10.0)
        leases = Leases(threading.Event())
        with leases.hold(ledger, claim(ledger, deadline_s=5.0)) as attempt:
            leases.tick()
            ledger.redis.zincrby(ledger.keys.leased, -6.0, "r/g0/0#1")  # six seconds later
            clock.ahead += 6.0
            leases.tick()
            assert ledger.reap(expire_until=inf) == [] and not attempt.lost.is_set()
            assert attempt.fail(FailureClass.ENGINE, "late") == "queued"


class TestWatching:
    @pytest.mark.parametrize(("inner", "blamed"), [(False, FailureClass.ENV), (True, FailureClass.USER)])
    def test_a_step_that_overruns_fails_the_attempt_under_its_thread(
        self, ledger: Ledger, inner: bool, blamed: FailureClass
    ) -> None:
        leases = Leases(threading.Event())
        ended = []

        def play() -> None:
            with leases.hold(ledger, claim(ledger)) as attempt:
                try:
                    with attempt.steps.inside(EnvironmentFailure, "environment.step(x)", 60.0 if inner else 0.05):
                        if inner:
                            with attempt.steps.inside(UserFailure, "the user", 0.05):
                                loop()
                        loop()
                except Abandoned:
                    with pytest.raises(Fenced):
                        attempt.open(HEADER)
                    ended.append(True)

        thread = threading.Thread(target=play)
        thread.start()
        until(leases.held)
        time.sleep(0.1)
        until(lambda: leases.tick() or ended)  # type: ignore[func-returns-value]
        thread.join(60)
        assert ended and not leases.held()
        state = ledger.job("r/g0/0")
        assert state is not None and state.failures == {blamed: 1} and state.state == "queued"
        assert state.reason.startswith("nothing in 0.05 s while waiting for ")

    def test_a_step_within_its_limit_is_left_alone_and_the_users_time_does_not_count(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        leases = Leases(threading.Event())
        with (
            leases.hold(ledger, claim(ledger)) as attempt,
            attempt.steps.inside(EnvironmentFailure, "environment.step(x)", 200.0),
        ):
            with attempt.steps.inside(UserFailure, "the user", 5000.0):
                clock.ahead += 300.0
                leases.tick()
            leases.tick()
            assert attempt.abandoned_at is None

    def test_past_the_deadline_in_a_step(self, ledger: Ledger) -> None:
        leases = Leases(threading.Event())
        with leases.hold(ledger, claim(ledger, deadline_s=0.05)) as attempt:
            attempt.steps.interrupt = lambda: None  # type: ignore[method-assign]
            with attempt.steps.inside(EnvironmentFailure, "environment.grade", 60.0):
                time.sleep(0.1)
                leases.tick()
                assert attempt.lost.is_set()
        state = ledger.job("r/g0/0")
        assert state is not None and state.failures == {FailureClass.ENV: 1}
        assert state.reason == "past the deadline of 0.05 s while waiting for environment.grade"

    @pytest.mark.parametrize("why", ["overdue", "lost"])
    def test_a_wait_for_the_engine_is_cut(self, ledger: Ledger, why: str) -> None:
        cut: list[str] = []
        leases = Leases(threading.Event(), cut=cut.append)
        with leases.hold(ledger, claim(ledger, deadline_s=0.01 if why == "overdue" else 1800.0)) as attempt:
            if why == "lost":
                leases.tick()
                assert cut == []
                attempt.lost.set()
            time.sleep(0.02)
            leases.tick()
        assert cut == ["r/g0/0"]

    def test_a_lost_lease_is_noticed(self, ledger: Ledger) -> None:
        leases = Leases(threading.Event())
        with leases.hold(ledger, claim(ledger)) as attempt:
            ledger.release("r/g0/0", 1)
            leases.tick()
            with pytest.raises(Fenced):
                attempt.check()

    def test_threads_that_do_not_come_back_are_counted_and_cripple_the_worker(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(leases_module, "STUCK_S", 0.0)
        crippled: list[bool] = []
        leases = Leases(threading.Event(), slots=3, crippled=lambda: crippled.append(True))
        with leases.hold(ledger, claim(ledger, 0)) as first:
            first.abandon(FailureClass.ENV, "hangs")
            time.sleep(0.01)
            leases.tick()
            assert leases.stuck() == ["r/g0/0"] and not crippled
            with leases.hold(ledger, claim(ledger, 1)) as second:
                second.abandon(FailureClass.ENV, "hangs")
                time.sleep(0.01)
                leases.tick()
                leases.tick()
                assert crippled == [True]
                assert "2 of 3 slots are lost to steps that do not end: r/g0/0, r/g1/0" in caplog.text
        assert leases.stuck() == []
        assert "the thread of attempt 1 came back" in caplog.text


class Flaky:
    """A ledger's method that fails first."""

    def __init__(self, method: Callable[..., object], *errors: Exception) -> None:
        self.method = method
        self.errors = list(errors)

    def __call__(self, *args: object, **options: object) -> object:
        if self.errors:
            raise self.errors.pop(0)
        return self.method(*args, **options)


class TestRedis:
    def test_it_may_be_away_or_full_for_long(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rollq.ledger.retry.FIRST_PAUSE_S", 0.01)
        with Leases(threading.Event()).hold(ledger, claim(ledger)) as attempt:
            errors = [redis.ConnectionError("refused"), Unwritable("full"), redis.TimeoutError("slow"), Unwritable("x")]
            monkeypatch.setattr(ledger, "append", Flaky(ledger.append, *errors))
            attempt.open(HEADER)
            assert len(ledger.journal("r/g0/0")) == 1
            assert attempt.stopped_s > 1.0  # which its deadline does not see

    def test_a_wait_past_the_deadline_costs_no_lease(
        self, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leases_module, "TICK_S", 0.01)
        monkeypatch.setattr("rollq.ledger.retry.LONGEST_PAUSE_S", 0.01)
        leases, room, write = Leases(threading.Event()), threading.Event(), ledger.append
        asked = threading.Event()

        def append(*args: object) -> None:
            asked.set()
            if not room.is_set():
                raise Unwritable("full")
            write(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(ledger, "append", append)
        with leases.hold(ledger, claim(ledger, deadline_s=500.0)) as attempt:
            thread = threading.Thread(target=attempt.open, args=(HEADER,))
            thread.start()
            assert asked.wait(60)
            clock.ahead += 600.0
            assert not attempt.overdue  # else its lease would not be renewed
            before = ledger.now()
            leases.tick()
            state = ledger.job("r/g0/0")
            assert state is not None and state.lease_until is not None and state.lease_until >= before + LEASE_S
            room.set()
            thread.join(60)
            attempt.check()
        assert len(ledger.journal("r/g0/0")) == 1

    def test_waiting_for_it_ends_when_the_attempt_must(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        draining = threading.Event()
        with Leases(draining).hold(ledger, claim(ledger)) as attempt:

            def refused(*args: object) -> None:
                draining.set()  # here: while it is being waited for
                raise redis.ConnectionError("refused")

            monkeypatch.setattr(ledger, "append", refused)
            with pytest.raises(Drained):
                attempt.open(HEADER)

    def test_a_journal_that_lost_its_tail_is_written_again(self, ledger: Ledger) -> None:
        with Leases(threading.Event()).hold(ledger, claim(ledger)) as attempt:
            attempt.open(HEADER)
            whole = ledger.journal("r/g0/0")
            ledger.redis.delete(ledger.keys.journal("r/g0/0"))
            attempt._append(b"next")
            assert ledger.journal("r/g0/0") == [*whole, b"next"]


def test_release_all_lets_nothing_stop_it(ledger: Ledger) -> None:
    leases = Leases(threading.Event())
    with leases.hold(ledger, claim(ledger, 0)) as first, leases.hold(ledger, claim(ledger, 1)) as second:
        ledger.fail(first.job.id, first.number, FailureClass.ENV, "broke")
        assert release_all(leases) == 1
        assert first.lost.is_set() and second.lost.is_set()
    stats = ledger.stats()
    assert (stats["leased"], stats["queued"]) == (0, 2)


def test_the_heartbeat_outlives_everything(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases_module, "TICK_S", 0.01)
    leases = Leases(threading.Event())
    errors = [redis.ConnectionError("refused"), Unwritable("full"), ValueError("a bug")]
    monkeypatch.setattr(leases_module, "tick", Flaky(lambda: leases.stop(), *errors))
    leases.start()
    leases._thread.join(60)
    assert not leases._thread.is_alive()
    assert "heartbeat: ConnectionError: refused" in caplog.text and "a bug" in caplog.text


def loop() -> None:
    while True:
        time.sleep(0.001)
