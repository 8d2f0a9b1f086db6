"""Leases: renewed in time, moved on while the engine is away; attempts that cannot stop by
themselves are ended. Late writes: what an attempt holds back for long is journaled by another
thread.
"""

import threading
import time
from contextlib import nullcontext
from typing import Any, cast

import pytest
import redis

from rollq.errors import (
    EnvironmentFailure,
    FailureClass,
    Fenced,
    TeacherFailure,
    Unwritable,
    UserFailure,
)
from rollq.ledger.ledger import Ledger
from rollq.trajectory import Header
from rollq_worker.agents.programs import running
from rollq_worker.process.attempts import leases as leases_module
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.leases import LEASE_S, Leases
from tests.clock import Clock
from tests.rollq.samples import observed, prompt, reader, reap, sampled
from tests.rollq_worker.process.ledgers import FailsFirst, claim
from tests.waiting import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the attempts and of their time limits."""
    clock = Clock()
    for module in ("attempt", "leases", "time_limits"):
        monkeypatch.setattr(f"rollq_worker.process.attempts.{module}.time", clock)
    return clock


def lease_until(ledger: Ledger, job_id: str) -> float:
    state = reader(ledger).job(job_id)
    assert state is not None and state.lease_until is not None
    return state.lease_until


class TestRenewing:
    def test_a_lease_ends_with_its_deadline_which_moves_while_the_engine_is_away(
        self, ledger: Ledger
    ) -> None:
        outage_s = 0.0
        leases = Leases(threading.Event(), lambda run: outage_s)
        with leases.hold(ledger, claim(ledger, deadline_s=5.0)):
            assert lease_until(ledger, "r/g0/0") - ledger.scripts.now() <= 5.0
            outage_s = 60.0
            before = ledger.scripts.now()
            leases.tick()
            assert (
                before + LEASE_S <= lease_until(ledger, "r/g0/0") <= ledger.scripts.now() + LEASE_S
            )

    def test_a_lease_outlives_its_deadline_so_that_the_attempt_can_report(
        self, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leases_module, "REPORT_S", 10.0)
        leases = Leases(threading.Event())
        with leases.hold(ledger, claim(ledger, deadline_s=5.0)) as attempt:
            leases.tick()
            # Six seconds later.
            ledger.redis.zincrby(ledger.keys.leased, -6.0, f"r/g0/0#{attempt.lease}")
            clock.ahead += 6.0
            leases.tick()
            assert reap(ledger) == [] and not attempt.lost.is_set()
            assert attempt.fail(FailureClass.ENGINE, "late") == "queued"

    @pytest.mark.parametrize(
        ("pause", "call", "name"),
        [("TICK_S", "tick", "all"), ("LOOK_EVERY_S", "write_behind", "late writes")],
    )
    def test_heartbeat_and_late_writer_survive_every_error(
        self,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        pause: str,
        call: str,
        name: str,
    ) -> None:
        monkeypatch.setattr(leases_module, pause, 0.01)
        leases, ended = Leases(threading.Event()), threading.Event()
        errors = [
            redis.ConnectionError("refused"),
            Unwritable("full"),
            RuntimeError("can't start new thread"),
        ]
        monkeypatch.setattr(leases, call, FailsFirst(ended.set, *errors))
        leases.start()
        assert ended.wait(10)
        leases.stop()
        assert (
            f"heartbeat: {name}: ConnectionError: refused" in caplog.text
            and "can't start new thread" in caplog.text
        )

    def test_an_error_that_lasts_is_warned_of_now_and_then_with_its_remedy(
        self,
        ledger: Ledger,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def refuse(*args: object) -> None:
            raise redis.AuthenticationError("invalid username-password pair.")

        leases = Leases(threading.Event())
        with leases.hold(ledger, claim(ledger)):
            monkeypatch.setattr(ledger, "renew_leases", refuse)
            for warned in (1, 1, 2):
                leases.tick()
                until(lambda warned=warned: len(caplog.records) == warned)
                clock.ahead += leases_module.WARN_EVERY_S / 2
        for record in caplog.records:
            assert record.message.startswith(
                "heartbeat: r: AuthenticationError: invalid username-password pair. Corr"
            )


class TestLateWrites:
    def start(self, attempt: Attempt) -> None:
        attempt.open(Header(attempt=1))
        attempt.append(prompt())
        attempt.append(sampled(0))

    def test_a_turn_in_flight_is_journaled_while_its_step_takes_long(self, ledger: Ledger) -> None:
        leases = Leases(threading.Event())
        leases.start()
        with leases.hold(ledger, claim(ledger)) as attempt:
            self.start(attempt)
            until(lambda: len(ledger.journal("r/g0/0")) == 3)
            attempt.append(observed(0))
            assert len(ledger.journal("r/g0/0")) == 4
        leases.stop()

    def test_one_job_that_cannot_be_written_holds_up_no_other(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rollq_worker.process.attempts.attempt.HELD_BACK_S", -1.0)
        monkeypatch.setattr(leases_module, "AWAY_PAUSE_S", 0.01)
        append, refused = ledger.append, ["r/g0/0"]
        errors = iter([Unwritable("full"), redis.TimeoutError("slow")])

        def fails(job_id: str, *args: Any) -> None:
            if job_id in refused:
                raise next(errors, ValueError("a bug"))
            append(job_id, *args)

        monkeypatch.setattr(ledger, "append", fails)
        leases = Leases(threading.Event())
        with (
            leases.hold(ledger, claim(ledger, 0)) as first,
            leases.hold(ledger, claim(ledger, 1)) as second,
        ):
            for attempt in (first, second):
                attempt.append(sampled(0))
                attempt.append(sampled(0))
            until(lambda: leases.write_behind() or ledger.journal("r/g1/0"))  # type: ignore[func-returns-value]
            until(lambda: leases.write_behind() or not first.holds_back)  # type: ignore[func-returns-value]
            assert ledger.journal("r/g0/0") == []
            refused.clear()
            first.append(observed(0))
            assert len(ledger.journal("r/g0/0")) == 3


class TestWatching:
    @pytest.mark.parametrize(
        ("inner", "blamed"), [(False, FailureClass.ENV), (True, FailureClass.USER)]
    )
    def test_a_call_past_its_limit_fails_the_attempt_under_its_thread(
        self, ledger: Ledger, inner: bool, blamed: FailureClass
    ) -> None:
        leases = Leases(threading.Event())
        limit_s = 60.0 if inner else 0.05
        with leases.hold(ledger, claim(ledger)) as attempt:
            limits = attempt.time_limits
            with limits.call(EnvironmentFailure, "environment.step(x)", limit_s):
                user = limits.call(UserFailure, "the user", 0.05) if inner else nullcontext()
                with user:
                    until(lambda: leases.tick() or attempt.lost.is_set())  # type: ignore[func-returns-value]
            with pytest.raises(Fenced):
                attempt.open(Header(attempt=1))
        state = reader(ledger).job("r/g0/0")
        assert state is not None and state.failures == {blamed: 1} and state.state == "queued"
        assert state.reason.startswith("nothing in 0.05 s while waiting for ")

    def test_the_time_for_which_the_process_was_frozen_counts_for_no_call(
        self, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leases_module, "TICK_S", 0.3)
        leases = Leases(threading.Event())
        with (
            leases.hold(ledger, claim(ledger, deadline_s=70.0)) as attempt,
            attempt.time_limits.call(EnvironmentFailure, "environment.step(x)", 70.0),
        ):
            leases.start()
            time.sleep(0.1)
            clock.ahead += 75.0
            until(lambda: attempt.left_s > 60.0)
            time.sleep(1.0)
            assert not attempt.lost.is_set()
        leases.stop()

    def test_the_deadline_passes_in_a_call(self, ledger: Ledger) -> None:
        leases = Leases(threading.Event())
        with (
            leases.hold(ledger, claim(ledger, deadline_s=0.05)) as attempt,
            attempt.time_limits.call(EnvironmentFailure, "environment.grade", 60.0),
        ):
            time.sleep(0.1)
            leases.tick()
            assert attempt.lost.is_set()
        state = reader(ledger).job("r/g0/0")
        assert state is not None and state.failures == {FailureClass.ENV: 1}
        assert state.reason == "past the deadline of 0.05 s while waiting for environment.grade"

    @pytest.mark.parametrize("in_call", [False, True], ids=["a turn", "a teacher"])
    @pytest.mark.parametrize("why", ["overdue", "lost"])
    def test_a_wait_for_the_engine_is_ended(self, ledger: Ledger, why: str, in_call: bool) -> None:
        ended: list[str] = []
        leases = Leases(threading.Event(), end_engine_wait=ended.append)
        job = claim(ledger, deadline_s=0.01 if why == "overdue" else 1800.0)
        with (
            leases.hold(ledger, job) as attempt,
            attempt.time_limits.call(TeacherFailure, "the teacher", 60.0)
            if in_call
            else nullcontext(),
        ):
            if why == "lost":
                leases.tick()
                assert ended == []
                attempt.lost.set()
            time.sleep(0.02)
            leases.tick()
        assert ended == ["r/g0/0"]

    def test_threads_that_do_not_come_back_are_counted_and_end_the_worker(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(leases_module, "LOST_THREAD_S", 0.0)
        calls: list[bool] = []
        leases = Leases(threading.Event(), slots=3, on_slots_lost=lambda: calls.append(True))
        with (
            leases.hold(ledger, claim(ledger, 0)) as first,
            first.time_limits.call(EnvironmentFailure, "a step", 60.0),
        ):
            first.abandon(FailureClass.ENV, "hangs")
            time.sleep(0.01)
            leases.tick()
            assert leases.lost_threads() == ["r/g0/0"] and not calls
            second_claim = claim(ledger, 1)
            with (
                leases.hold(ledger, second_claim) as second,
                second.time_limits.call(EnvironmentFailure, "a step", 60.0),
            ):
                second.abandon(FailureClass.ENV, "hangs")
                time.sleep(0.01)
                leases.tick()
                leases.tick()
                assert calls == [True]
                assert (
                    "2 of 3 slots are lost to steps that do not end: r/g0/0, r/g1/0" in caplog.text
                )
        assert leases.lost_threads() == []
        assert "the thread of attempt 1 came back" in caplog.text

    def test_agent_functions_that_do_not_end_count_as_well(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        until(lambda: not running.lost_agent_threads())  # of earlier tests
        monkeypatch.setattr(running, "STOP_S", 0.0)
        over = threading.Event()
        calls: list[bool] = []
        leases = Leases(threading.Event(), slots=64, on_slots_lost=lambda: calls.append(True))
        agents = [
            running.AgentThread(
                "a", lambda episode: over.wait(60), cast(Any, None), {}, lambda: None
            )
            for _ in range(leases_module.MOST_LOST)
        ]
        try:
            for agent in agents:
                assert not calls
                for _ in range(2):  # as play_with_agent does
                    agent.stop()
                leases.tick()
            assert calls == [True]
        finally:
            over.set()
        until(lambda: not running.lost_agent_threads())


def test_release_all_goes_on_past_what_has_ended(ledger: Ledger) -> None:
    leases = Leases(threading.Event())
    with (
        leases.hold(ledger, claim(ledger, 0)) as first,
        leases.hold(ledger, claim(ledger, 1)) as second,
    ):
        ledger.fail(first.job.id, first.lease, FailureClass.ENV, "broke")
        assert leases.release_all() == 1
        assert first.lost.is_set() and second.lost.is_set()
    stats = reader(ledger).stats()
    assert (stats["leased"], stats["queued"]) == (0, 2)


def test_release_all_goes_on_past_a_server_that_is_away(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Leases(threading.Event())
    monkeypatch.setattr(
        ledger, "release", FailsFirst(ledger.release, redis.ConnectionError("refused"))
    )
    with leases.hold(ledger, claim(ledger, 0)), leases.hold(ledger, claim(ledger, 1)):
        assert leases.release_all() == 1
    assert reader(ledger).stats()["queued"] == 1
