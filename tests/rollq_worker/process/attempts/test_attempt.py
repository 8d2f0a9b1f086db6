"""An attempt as a journal: when its events are written, its deadline's clock, and its writes while
Redis is away, full or has lost data.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from rollq.errors import (
    ContractError,
    EnvironmentFailure,
    FailureClass,
    Fenced,
    LedgerError,
    Unwritable,
    UserFailure,
)
from rollq.events import Event, Finish
from rollq.ledger.constants import LEASE_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.versions import Versions
from rollq.token_stats import TokenStats
from rollq.trajectory import Header, Trajectory
from rollq.trajectory_extras import Extra
from rollq.wire.events import decode_event, encode_event
from rollq_worker.failures import DeadlineExceeded, Drained
from rollq_worker.process.attempts import attempt as attempt_module
from rollq_worker.process.attempts.attempt import HELD_BACK_S, Attempt
from rollq_worker.process.attempts.leases import Leases
from tests.clock import Clock
from tests.rollq import samples
from tests.rollq.samples import ids, observed, prompt, reader, sampled
from tests.rollq_worker.process.ledgers import FailsFirst, claim

HEADER = Header(attempt=1)
JOB = "r/g0/0"
LAST = replace(observed(1, done=True), ids=ids())
OTHER = encode_event(sampled(9), JOB)


@pytest.fixture
def attempt(ledger: Ledger) -> Iterator[Attempt]:
    with Leases(threading.Event()).hold(ledger, claim(ledger)) as held:
        yield held


@pytest.fixture
def calls(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that are called."""
    called: list[str] = []
    call = ledger.scripts.call

    def counted(name: str, *args: Any, **options: Any) -> Any:
        called.append(name)
        return call(name, *args, **options)

    monkeypatch.setattr(ledger.scripts, "call", counted)
    return called


def kinds(ledger: Ledger) -> list[str]:
    """The kinds of the journal's events in Redis."""
    return [type(decode_event(blob, JOB)).__name__ for blob in ledger.journal(JOB)[1:]]


def play(attempt: Attempt, *events: Event) -> None:
    attempt.open(HEADER)
    for event in events:
        attempt.append(event)


def end(attempt: Attempt, *events: Event) -> None:
    of = Trajectory(job=attempt.job, header=HEADER, events=[*events, samples.closed()])
    attempt.complete(of, TokenStats())


class TestWriting:
    def test_a_turn_costs_one_call(
        self, attempt: Attempt, ledger: Ledger, calls: list[str]
    ) -> None:
        opening, *turns = [prompt(), sampled(0), observed(0), sampled(1), LAST]
        play(attempt, opening, *turns)
        assert calls == ["append"] and kinds(ledger) == ["Prompt", "Sampled", "Observed"]
        end(attempt, opening, *turns)
        assert calls == ["append", "complete"] and reader(ledger).stats()["done"] == 1
        assert ledger.journal(JOB)[1:-1] == [
            encode_event(event, JOB) for event in (opening, *turns)
        ]

    def test_extras_are_there_before_the_job_is_done(
        self, attempt: Attempt, ledger: Ledger, calls: list[str]
    ) -> None:
        events = [prompt(), sampled(0), LAST]
        play(attempt, *events)
        extras = {"routed_experts": Extra(dtype="int32", shape=(2,), data=bytes(8))}
        done = Trajectory(
            job=attempt.job, header=HEADER, events=[*events, samples.closed()], extras=extras
        )
        attempt.complete(done, TokenStats())
        assert calls == ["save_extras", "complete"]
        [found] = reader(ledger).read([JOB], ["routed_experts"])
        assert not isinstance(found, ContractError) and found.extras == extras

    def test_a_turn_that_opens_a_new_trace_is_written_before_the_next(
        self, attempt: Attempt, ledger: Ledger
    ) -> None:
        play(attempt, prompt(), sampled(0), replace(observed(0), ids=ids()))
        assert kinds(ledger) == []
        attempt.append(prompt(5, 6))
        assert kinds(ledger) == ["Prompt", "Sampled", "Observed", "Prompt"]

    def test_another_thread_writes_what_waits_for_long(
        self, attempt: Attempt, ledger: Ledger, clock: Clock
    ) -> None:
        play(attempt, prompt(), sampled(0))
        attempt.write_behind()
        assert kinds(ledger) == []
        clock.ahead += HELD_BACK_S + 0.01
        attempt.write_behind()
        assert kinds(ledger) == ["Prompt", "Sampled"]
        attempt.append(sampled(0))
        attempt.write_behind()
        assert kinds(ledger) == ["Prompt", "Sampled"]  # the next one has a time of its own
        attempt.append(observed(0))
        assert kinds(ledger) == ["Prompt", "Sampled", "Sampled", "Observed"]

    @pytest.mark.parametrize("how", ["release", "fail", "abandon"])
    def test_all_is_written_before_the_end(
        self, attempt: Attempt, ledger: Ledger, how: str
    ) -> None:
        play(attempt, prompt(), sampled(0, finish=Finish.ABORT), sampled(0, finish=Finish.ABORT))
        arguments = () if how == "release" else (FailureClass.ENGINE, "broke")
        getattr(attempt, how)(*arguments)
        assert kinds(ledger) == ["Prompt", "Sampled", "Sampled"]
        assert reader(ledger).stats()["queued"] == 1

    @pytest.mark.parametrize("how", ["release", "fail", "abandon"])
    def test_it_ends_although_its_journal_is_damaged(
        self, attempt: Attempt, ledger: Ledger, how: str
    ) -> None:
        play(attempt, prompt())
        ledger.redis.set(ledger.keys.journal(JOB), "junk")
        getattr(attempt, how)(*(() if how == "release" else (FailureClass.ENGINE, "broke")))
        assert reader(ledger).stats()["queued"] == 1

    def test_its_thread_learns_that_another_one_was_fenced(
        self, attempt: Attempt, ledger: Ledger, clock: Clock
    ) -> None:
        play(attempt, prompt(), sampled(0))
        clock.ahead += 1.0
        ledger.release(JOB, attempt.lease)
        attempt.write_behind()
        for call in (attempt.check, lambda: attempt.append(observed(0))):
            with pytest.raises(Fenced, match="lost its lease"):
                call()

    def test_its_thread_meets_the_error_that_another_one_met(
        self, attempt: Attempt, ledger: Ledger, clock: Clock
    ) -> None:
        play(attempt, prompt(), sampled(0))
        clock.ahead += 1.0
        ledger.redis.set(ledger.keys.journal(JOB), "junk")
        attempt.write_behind()
        with pytest.raises(LedgerError, match="is a string"):
            attempt.append(observed(0))

    def test_another_thread_does_not_wait_for_redis(
        self, attempt: Attempt, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        play(attempt, prompt(), sampled(0))
        clock.ahead += 1.0
        monkeypatch.setattr(
            ledger, "append", FailsFirst(ledger.append, Unwritable("full"), redis.ConnectionError())
        )
        for error in (Unwritable, redis.ConnectionError):
            with pytest.raises(error):
                attempt.write_behind()
        attempt.write_behind()
        assert kinds(ledger) == ["Prompt", "Sampled"]


class TestLostTail:
    """Redis came back without its last writes."""

    @pytest.mark.parametrize("kept", range(4))
    @pytest.mark.parametrize("how", ["append", "complete"])
    def test_it_is_written_again(
        self, attempt: Attempt, ledger: Ledger, kept: int, how: str
    ) -> None:
        events = [prompt(), sampled(0), observed(0)]
        play(attempt, *events)
        whole = ledger.journal(JOB)
        cut(ledger, kept)
        if how == "append":
            attempt.append(sampled(1))
            attempt.append(observed(1))
            assert ledger.journal(JOB)[:4] == whole and len(ledger.journal(JOB)) == 6
        else:
            end(attempt, *events)
            assert ledger.journal(JOB)[:-1] == whole and kinds(ledger)[-1] == "Closed"

    @pytest.mark.parametrize("others", [[OTHER], [OTHER] * 2, [OTHER] * 9])
    @pytest.mark.parametrize("kept", range(4))
    def test_a_journal_never_gets_the_entries_of_two_attempts(
        self, attempt: Attempt, ledger: Ledger, kept: int, others: list[bytes]
    ) -> None:
        events = [prompt(), sampled(0), observed(0)]
        play(attempt, *events)
        if kept + len(others) == 4:
            # The same length shows nothing; the lease keeps others from writing that.
            others = others * 2
        cut(ledger, kept)
        ledger.redis.rpush(ledger.keys.journal(JOB), *others)
        stored = ledger.journal(JOB)
        attempt.append(sampled(1))
        with pytest.raises(Fenced, match="another journal than attempt 1 wrote"):
            attempt.append(observed(1))
        with pytest.raises(Fenced):
            end(attempt, *events)
        assert ledger.journal(JOB) == stored and reader(ledger).stats()["leased"] == 1

    def test_after_a_lost_claim_one_of_two_attempts_goes_on(self, ledger: Ledger) -> None:
        job, leases = samples.job(group="g0", size=1), Leases(threading.Event())
        ledger.submit([job])
        image = {key: ledger.redis.dump(key) for key in ledger.redis.keys("*")}
        with leases.hold(ledger, samples.claim(ledger, JOB, "a")) as first:
            play(first, prompt(), sampled(0, 1, 2, 3), observed(0))
            ledger.redis.flushdb()
            for key, dump in image.items():
                ledger.redis.restore(key, 0, dump)
            with leases.hold(ledger, samples.claim(ledger, JOB, "b")) as second:
                events = [prompt(), sampled(0, 20, 21), observed(0)]
                play(second, *events)
                assert first.number == second.number
                first.append(sampled(1, 13, 14))
                with pytest.raises(Fenced):
                    first.append(observed(1))
                with pytest.raises(Fenced):
                    end(first)
                leases.tick()
                assert (first.lost.is_set(), second.lost.is_set()) == (True, False)
                end(second, *events)
        assert [event.ids for event in events] == [
            decode_event(b, JOB).ids for b in ledger.journal(JOB)[1:-1]
        ]  # type: ignore[union-attr]

    def test_an_entry_that_cannot_be_read_is_not_its_own(
        self, attempt: Attempt, ledger: Ledger
    ) -> None:
        play(attempt, prompt(), sampled(0), observed(0))
        cut(ledger, 1)
        ledger.redis.rpush(ledger.keys.journal(JOB), b"junk")
        attempt.append(sampled(1))
        with pytest.raises(Fenced):
            attempt.append(observed(1))


def cut(ledger: Ledger, kept: int) -> None:
    """Leave the journal's first entries only."""
    key = ledger.keys.journal(JOB)
    ledger.redis.ltrim(key, 0, kept - 1) if kept else ledger.redis.delete(key)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(attempt_module, "time", clock := Clock())
    return clock


def test_the_deadline_stands_still_while_the_engine_is_away(ledger: Ledger, clock: Clock) -> None:
    outages = [100.0]  # before the claim: these do not count
    with Leases(threading.Event(), lambda run: sum(outages)).hold(
        ledger, claim(ledger, deadline_s=200.0)
    ) as attempt:
        outages.append(3000.0)
        clock.ahead += 250.0
        attempt.check()
        assert attempt.stopped_s == 3000.0 and 2900.0 < attempt.left_s <= 2950.0
        outages.pop()
        with pytest.raises(DeadlineExceeded, match=r"deadline of 200 s"):
            attempt.check()


def test_threads_that_wait_for_redis_at_once_count_the_wait_once(
    attempt: Attempt, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = threading.Semaphore(0), threading.Event()

    def is_fresh(*args: Any) -> bool:
        begun.release()
        return over.wait(60)

    monkeypatch.setattr(Versions, "is_fresh", is_fresh)
    threads = [threading.Thread(target=attempt.is_fresh, args=["1", 0]) for _ in range(3)]
    for thread in threads:
        thread.start()
        assert begun.acquire(timeout=60)
        clock.ahead += 10.0
    assert 30.0 <= attempt.stopped_s < 31.0
    over.set()
    for thread in threads:
        thread.join(60)
    assert 30.0 <= attempt.stopped_s < 31.0


def test_redis_may_be_away_or_full_for_long(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "SHORT_WAIT_S", 0.0)
    with Leases(threading.Event()).hold(ledger, claim(ledger)) as attempt:
        errors = [
            redis.ConnectionError("refused"),
            Unwritable("full"),
            redis.TimeoutError("slow"),
            Unwritable("x"),
        ]
        monkeypatch.setattr(ledger, "append", FailsFirst(ledger.append, *errors))
        play(attempt, prompt(), sampled(0), observed(0))
        assert len(ledger.journal(JOB)) == 4
        assert attempt.stopped_s > 0.03  # which its deadline does not see


def test_a_wait_for_redis_past_the_deadline_costs_no_lease(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "SHORT_WAIT_S", 0.01)
    leases, has_room, asked, append = (
        Leases(threading.Event()),
        threading.Event(),
        threading.Event(),
        ledger.append,
    )

    def append_if_room(*args: object) -> None:
        asked.set()
        if not has_room.is_set():
            raise Unwritable("full")
        append(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger, "append", append_if_room)
    with leases.hold(ledger, claim(ledger, deadline_s=500.0)) as attempt:
        thread = threading.Thread(target=play, args=(attempt, prompt(), sampled(0), observed(0)))
        thread.start()
        assert asked.wait(60)
        clock.ahead += 600.0
        assert not attempt.overdue  # else its lease would not be renewed
        before = ledger.scripts.now()
        leases.tick()
        state = reader(ledger).job(JOB)
        assert (
            state is not None
            and state.lease_until is not None
            and state.lease_until >= before + LEASE_S
        )
        has_room.set()
        thread.join(60)
        attempt.check()
    assert len(ledger.journal(JOB)) == 4


def test_waiting_for_redis_ends_when_the_attempt_must_stop(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    draining = threading.Event()
    with Leases(draining).hold(ledger, claim(ledger)) as attempt:

        def refused(*args: object) -> None:
            draining.set()  # here: while it is being waited for
            raise redis.ConnectionError("refused")

        monkeypatch.setattr(ledger, "append", refused)
        with pytest.raises(Drained):
            play(attempt, prompt(), sampled(0), observed(0))


def test_an_attempt_is_abandoned_although_its_record_cannot_be_read(ledger: Ledger) -> None:
    with Leases(threading.Event()).hold(ledger, claim(ledger)) as attempt:
        ledger.redis.set(ledger.keys.job(JOB), "garbage")
        attempt.abandon(FailureClass.ENV, "nothing in 60 s")
        assert attempt.abandoned_at is not None
        with pytest.raises(Fenced):
            attempt.check()


def test_it_says_what_it_is_waiting_for(attempt: Attempt) -> None:
    assert attempt.waits_for[0] == "start"
    attempt.open(HEADER)
    attempt.append(prompt())
    assert attempt.waits_for[0] == "engine"
    with attempt.time_limits.call(EnvironmentFailure, "environment.step(look)", 60.0):
        what, seconds = attempt.waits_for
        assert (what, 0 <= seconds < 60) == ("environment.step(look)", True)
        with attempt.time_limits.call(UserFailure, "the user", 60.0):
            assert attempt.waits_for[0] == "the user"
    assert attempt.waits_for[0] == "engine"
