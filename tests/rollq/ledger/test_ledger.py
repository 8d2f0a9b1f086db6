"""What each step of the ledger does, on a real Redis. Time is Redis's: tests age leases and holds by their scores."""

from dataclasses import replace

import pytest

from rollq.errors import (
    ContractError,
    FailureClass,
    Fenced,
    JobConflict,
    JournalConflict,
    LedgerError,
    NotHeld,
    SettingsError,
)
from rollq.job import Budget, Purpose
from rollq.ledger import ledger as ledger_module
from rollq.ledger.ledger import Ledger, Outcome, Refusal, State
from rollq.ledger.run_index import runs
from rollq.trajectory import Header, Stop
from rollq.wire.codec import encode_event, encode_header
from tests.rollq.samples import claim, closed, events, group, job, journal, play, prompt, reap


def expire_lease(ledger: Ledger, job_id: str, attempt: int) -> None:
    ledger.redis.zadd(ledger.keys.leased, {f"{job_id}#{attempt}": 1}, xx=True)


def forget_backoff(ledger: Ledger, job_id: str) -> None:
    ledger.redis.hset(ledger.keys.job(job_id), "not_before", 0)


def expire_hold(ledger: Ledger, *groups: str) -> None:
    for name in groups:
        ledger.redis.zadd(ledger.keys.held("train"), {name: 1}, xx=True)


def queue_score(ledger: Ledger, job_id: str) -> float | None:
    """When it is published next, from now."""
    score = ledger.redis.zscore(ledger.keys.queued, job_id)
    return None if score is None else score - ledger.now()


def fail_late(ledger: Ledger, job_id: str, attempt: int, failure: FailureClass) -> Outcome:
    """With a backoff that is longer than any test takes."""
    outcome = ledger.fail(job_id, attempt, failure, "x")
    later = ledger.now() + 29
    ledger.redis.hset(ledger.keys.job(job_id), "not_before", later)
    ledger.redis.zadd(ledger.keys.queued, {job_id: later})
    return replace(outcome, not_before=later)


class TestSubmit:
    def test_a_group_is_entered_once(self, ledger: Ledger) -> None:
        assert ledger.submit(group()).new == ["r/g/0", "r/g/1"]
        assert ledger.submit(group()).known == ["r/g/0", "r/g/1"]
        assert ledger.submit(group()[1:]).known == ["r/g/1"]
        stats = ledger.stats()
        assert (stats["submitted"], stats["resubmitted"], stats["queued"], stats["groups_open"]) == (2, 3, 2, 1)
        assert runs(ledger.redis) == ["r"]

    def test_other_content_changes_nothing(self, ledger: Ledger) -> None:
        ledger.submit(group())
        before = ledger.redis.hgetall(ledger.keys.job("r/g/1"))
        with pytest.raises(JobConflict, match="r/g/1"):
            ledger.submit([job(0), job(1, seed=9)])
        with pytest.raises(JobConflict, match="r/g/0"):
            ledger.submit(group(size=3))
        assert ledger.redis.hgetall(ledger.keys.job("r/g/1")) == before
        assert ledger.stats()["submitted"] == 2

    def test_a_new_group_must_be_whole(self, ledger: Ledger) -> None:
        with pytest.raises(ContractError, match=r"r/g.*1 of 2"):
            ledger.submit(group()[:1])
        with pytest.raises(ContractError, match="twice"):
            ledger.submit([job(0), job(0)])
        with pytest.raises(ContractError, match="another group"):
            ledger.submit([job(0), job(1, "h")])
        with pytest.raises(ContractError, match="differ"):
            ledger.submit([job(0), job(1, min_viable=1)])
        assert ledger.stats()["submitted"] == 0

    def test_a_sealed_run_takes_only_what_it_knows(self, ledger: Ledger) -> None:
        ledger.submit(group())
        ledger.seal()
        assert ledger.submit(group()).known
        with pytest.raises(LedgerError, match="sealed"):
            ledger.submit(group("h"))

    def test_sequences_count_groups(self, ledger: Ledger) -> None:
        for name in ("b", "a"):
            ledger.submit(group(name))
        assert claim(ledger, "r/b/0").job.seq == 1
        assert claim(ledger, "r/a/0").job.seq == 2


class TestClaim:
    def test_the_token_tells_a_repeat_from_a_rival(self, ledger: Ledger) -> None:
        ledger.submit(group())
        first = claim(ledger, "r/g/0", "mine")
        assert first.attempt == 1
        assert first.job == job(0, seq=1)
        assert claim(ledger, "r/g/0", "mine") == first
        assert ledger.claim("r/g/0", worker="v", token="yours") == Refusal("leased")

    def test_refusals(self, ledger: Ledger) -> None:
        ledger.submit(group())
        assert ledger.claim("r/x/0", worker="w", token="t") == Refusal("unknown")
        play(ledger, "r/g/0")
        assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("done")
        with pytest.raises(ContractError, match="not of run r"):
            ledger.claim("other/g/0", worker="w", token="t")
        with pytest.raises(ContractError, match="not a job id"):
            ledger.claim("r/g", worker="w", token="t")

    def test_a_lease_ends_with_the_deadline(self, ledger: Ledger) -> None:
        ledger.submit(group(budget=Budget(deadline_s=2.0)))
        before = ledger.now()
        claim(ledger, "r/g/0")
        end = ledger.redis.zscore(ledger.keys.leased, "r/g/0#1")
        assert before + 2.0 <= end <= ledger.now() + 2.0
        ledger.append("r/g/0", 1, 0, encode_header(Header(attempt=1)))
        assert ledger.renew([("r/g/0", 1)], left_s=[1.9]) == []
        assert ledger.redis.zscore(ledger.keys.leased, "r/g/0#1") - ledger.now() <= 2.0
        before = ledger.now()
        ledger.renew([("r/g/0", 1)], left_s=[60.0])  # the engine was away for a minute
        assert before + 15.0 <= ledger.redis.zscore(ledger.keys.leased, "r/g/0#1") <= ledger.now() + 15.0

    def test_an_early_one_is_refused_and_comes_again_in_time(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        outcome = fail_late(ledger, "r/g/0", 1, FailureClass.ENGINE)
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": ledger.now() + 600})  # published all the same
        assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("early", pytest.approx(outcome.not_before))
        assert ledger.redis.zscore(ledger.keys.queued, "r/g/0") == pytest.approx(outcome.not_before, abs=1e-5)

    def test_a_body_that_cannot_be_read_dies(self, ledger: Ledger) -> None:
        ledger.submit(group())
        ledger.redis.hset(ledger.keys.job("r/g/0"), "body", b"junk")
        for status in (State.QUEUED, State.DEAD):
            refusal = ledger.claim("r/g/0", worker="w", token=f"t{status}")
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "unreadable"
            assert "r/g/0" in refusal.detail
            found = ledger.redis.hget(ledger.keys.job("r/g/0"), "state")
            assert found.decode() == status
        assert ledger.dead()[0].failure is FailureClass.JOB


class TestJournal:
    def test_only_the_lease_may_write(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        end = encode_event(closed(), "r/g/0")
        for write in (
            lambda: ledger.append("r/g/0", 2, 0, b"x"),
            lambda: ledger.complete("r/g/0", 2, 0, end),
            lambda: ledger.fail("r/g/0", 2, FailureClass.ENV, "x"),
            lambda: ledger.release("r/g/0", 2),
            lambda: ledger.append("r/g/1", 1, 0, b"x"),
            lambda: ledger.append("r/unknown/1", 1, 0, b"x"),
        ):
            with pytest.raises(Fenced, match="r/"):
                write()
        assert ledger.stats()["fenced"] == 6
        assert ledger.journal("r/g/0") == []

    def test_an_index_tells_a_repeat_from_a_conflict(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        for _ in range(2):
            for index in range(3):
                ledger.append("r/g/0", 1, index, b"event %d" % index)
        for index, blob in ((5, b"event 5"), (1, b"other")):
            with pytest.raises(JournalConflict) as caught:
                ledger.append("r/g/0", 1, index, blob)
            assert caught.value.length == 3
        assert ledger.journal("r/g/0") == [b"event 0", b"event 1", b"event 2"]

    def test_a_new_attempt_goes_on_with_the_journal(self, ledger: Ledger) -> None:
        ledger.submit(group())
        assert claim(ledger, "r/g/0", "a").journal == 0
        journal(ledger, "r/g/0", 1, events()[:3])
        written = ledger.journal("r/g/0")
        ledger.release("r/g/0", 1)
        again = claim(ledger, "r/g/0", "b")
        assert (again.attempt, again.set_aside, again.journal) == (2, False, len(written))
        assert claim(ledger, "r/g/0", "b") == again
        assert ledger.journal("r/g/0") == written
        assert ledger.stats()["resumed"] == 0  # nobody has played it again yet
        for _ in range(2):
            ledger.append("r/g/0", 2, len(written), encode_event(events()[3], "r/g/0"))
        ledger.append("r/g/0", 2, len(written) + 1, encode_event(events()[4], "r/g/0"))
        assert (ledger.stats()["resumed"], ledger.stats()["turns_saved"]) == (1, 1)

    def test_an_attempt_that_only_closes_what_it_found_has_resumed_it(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0", "a")
        index = journal(ledger, "r/g/0", 1, events()[:5])
        ledger.release("r/g/0", 1)
        claim(ledger, "r/g/0", "b")
        for _ in range(2):
            ledger.complete("r/g/0", 2, index, encode_event(closed(), "r/g/0"))
        assert (ledger.stats()["resumed"], ledger.stats()["turns_saved"]) == (1, 2)

    def test_a_journal_that_is_set_aside_was_not_resumed(self, ledger: Ledger) -> None:
        """Its replay diverged, as often as it was tried."""
        ledger.submit(group())
        claim(ledger, "r/g/0", "a")
        journal(ledger, "r/g/0", 1, events()[:3])
        ledger.release("r/g/0", 1)
        claim(ledger, "r/g/0", "b")
        ledger.fail("r/g/0", 2, FailureClass.ENV, "diverged")
        assert claim(ledger, "r/g/0", "c").set_aside
        journal(ledger, "r/g/0", 3, events()[:5])
        ledger.complete("r/g/0", 3, 6, encode_event(closed(), "r/g/0"))
        assert (ledger.stats()["resumed"], ledger.stats()["turns_saved"]) == (0, 0)

    def test_after_a_fault_of_the_environment_it_starts_afresh_and_keeps_the_old_journal(self, ledger: Ledger) -> None:
        ledger.submit(group())
        assert not claim(ledger, "r/g/0", "a").set_aside
        journal(ledger, "r/g/0", 1, [prompt()])
        first = ledger.journal("r/g/0")
        ledger.fail("r/g/0", 1, FailureClass.ENV, "broke")
        again = claim(ledger, "r/g/0", "b")
        assert (again.attempt, again.set_aside) == (2, True)
        assert claim(ledger, "r/g/0", "b") == again
        assert ledger.journal("r/g/0") == []
        assert ledger.journal("r/g/0", 1) == first
        state = ledger.job("r/g/0")
        assert state is not None
        assert state.set_aside == [1]

    def test_the_header_is_the_first_entry(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        journal(ledger, "r/g/0", 1, [])
        assert ledger.trajectory("r/g/0").header == Header(attempt=1, worker="w")

    def test_renewal_tells_what_is_lost(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        members = [("r/g/0", 1), ("r/g/0", 2), ("r/g/1", 1)]
        assert ledger.renew(members) == members[1:]
        assert ledger.renew([]) == []


class TestComplete:
    def test_twice_counts_once(self, ledger: Ledger) -> None:
        ledger.submit(group())
        play(ledger, "r/g/0", 0.5)
        end = encode_event(closed(0.5), "r/g/0")
        ledger.complete("r/g/0", 1, 6, end)
        stats = ledger.stats()
        assert (stats["done"], stats["leased"], stats["turns"], stats["stops"]) == (1, 0, 2, {"done": 1})
        assert stats["reward_mean"] == 0.5
        assert ledger.trajectory("r/g/0").reward == 0.5

    def test_only_a_graded_end_completes(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        for event in (prompt(), replace(closed(), stop=Stop.FAILED, reward=None)):
            with pytest.raises(ContractError, match="r/g/0"):
                ledger.complete("r/g/0", 1, 0, encode_event(event, "r/g/0"))
        with pytest.raises(JournalConflict):
            ledger.complete("r/g/0", 1, 3, encode_event(closed(), "r/g/0"))
        assert ledger.stats()["leased"] == 1


class TestFail:
    @pytest.mark.parametrize(
        ("failure", "budget"),
        [("engine", 5), ("user", 5), ("worker", 5), ("env", 2), ("job", 2), ("cancelled", 1)],
    )
    def test_a_budget_counts_failures_of_its_class(self, ledger: Ledger, failure: str, budget: int) -> None:
        ledger.submit(group())
        for attempt in range(1, budget + 1):
            claim(ledger, "r/g/0", str(attempt))
            before = ledger.now()
            outcome = ledger.fail("r/g/0", attempt, FailureClass(failure), f"reason {attempt}")
            assert outcome.status == ("dead" if attempt == budget else "queued")
            if outcome.status == State.QUEUED and failure in ("engine", "user", "worker"):
                assert before + 0.99 < outcome.not_before < ledger.now() + min(30, 2**attempt)
            else:
                assert outcome.not_before == 0
            forget_backoff(ledger, "r/g/0")
        (letter,) = ledger.dead()
        assert (letter.job_id, letter.failure, letter.attempts) == ("r/g/0", failure, budget)
        assert letter.reason == f"reason {budget}"
        assert ledger.stats()["failures"] == {failure: budget}
        found = ledger.trajectory("r/g/0")
        assert found.stop is (Stop.ABORTED if failure == "cancelled" else Stop.FAILED)
        assert (found.reward, found.failure) == (None, failure)

    def test_classes_do_not_share_a_budget_and_a_release_costs_none(self, ledger: Ledger) -> None:
        ledger.submit(group())
        classes = [*[FailureClass.ENGINE] * 4, *[FailureClass.USER] * 4, FailureClass.ENV]
        for attempt, failure in enumerate(classes, 1):
            claim(ledger, "r/g/0", f"a{attempt}")
            assert ledger.fail("r/g/0", attempt, failure, "x").status == "queued"
            forget_backoff(ledger, "r/g/0")
        for attempt in range(10, 30):
            claim(ledger, "r/g/0", f"b{attempt}")
            ledger.release("r/g/0", attempt)
        assert queue_score(ledger, "r/g/0") == pytest.approx(-ledger.now())
        assert ledger.stats()["dead"] == 0

    def test_only_a_turn_beyond_all_before_resets_the_workers_budget(self, ledger: Ledger) -> None:
        ledger.submit(group())
        for attempt in range(1, 5):  # kills its worker after the first turn, each time
            claim(ledger, "r/g/0", f"a{attempt}")
            if attempt == 1:
                journal(ledger, "r/g/0", attempt, events()[:3])
            expire_lease(ledger, "r/g/0", attempt)
            reap(ledger)
        state = ledger.job("r/g/0")
        assert state is not None
        assert state.failures == {FailureClass.WORKER: 4}
        claim(ledger, "r/g/0", "b")
        for index, event in enumerate(events()[3:5], 4):
            ledger.append("r/g/0", 5, index, encode_event(event, "r/g/0"))
        state = ledger.job("r/g/0")
        assert state is not None
        assert state.failures == {}

    def test_a_reason_may_hold_anything(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.fail("r/g/0", 1, FailureClass.CANCELLED, "\ud800" + "x" * 100_000)
        assert 7000 < len(ledger.dead()[0].reason) <= 8000


class TestReap:
    def test_an_expired_lease_costs_one_worker_failure(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        expire_lease(ledger, "r/g/0", 1)
        assert ledger.reap() == []  # nobody says that Redis was there all the time
        assert reap(ledger) == ["r/g/0"]
        with pytest.raises(Fenced):
            ledger.append("r/g/0", 1, 0, b"late")
        state = ledger.job("r/g/0")
        assert state is not None
        assert (state.state, state.failures, state.worker) == ("queued", {FailureClass.WORKER: 1}, "w")
        assert claim(ledger, "r/g/0", "u").attempt == 2

    def test_the_last_expiry_kills(self, ledger: Ledger) -> None:
        ledger.submit(group())
        for attempt in range(1, 6):
            claim(ledger, "r/g/0", str(attempt))
            expire_lease(ledger, "r/g/0", attempt)
            reap(ledger)
        (letter,) = ledger.dead()
        assert (letter.failure, letter.attempts) == (FailureClass.WORKER, 5)
        assert "lease of w expired" in letter.reason

    def test_publishing_is_an_outbox(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledger_module, "PUBLISHING_S", 100.0)
        ledger.submit(group(), publish_in_s=0)
        before = ledger.now()
        assert ledger.reap() == ["r/g/0", "r/g/1"]
        assert ledger.reap() == []  # being published
        for job_id in ("r/g/0", "r/g/1"):
            assert before + 100 <= ledger.redis.zscore(ledger.keys.queued, job_id) <= ledger.now() + 100
        before = ledger.now()
        ledger.confirm(["r/g/0"])
        assert before + 600 <= ledger.redis.zscore(ledger.keys.queued, "r/g/0") <= ledger.now() + 600
        assert queue_score(ledger, "r/g/1") <= 100
        ledger.redis.zadd(ledger.keys.queued, {"r/g/1": ledger.now() + 30})
        assert ledger.reap(broker_empty=True) == []  # perhaps still on its way
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": ledger.now() + 494})
        assert ledger.reap(broker_empty=False) == []
        assert ledger.reap(broker_empty=True) == ["r/g/0"]

    def test_a_confirmation_does_not_hide_what_happened_since(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger_module, "PUBLISHING_S", 100.0)
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.confirm(["r/g/0", "r/unknown/0"])
        assert queue_score(ledger, "r/g/0") is None
        ledger.release("r/g/0", 1)
        ledger.confirm(["r/g/0"])
        assert ledger.reap() == ["r/g/0"]
        claim(ledger, "r/g/0", "u")
        outcome = fail_late(ledger, "r/g/0", 2, FailureClass.ENGINE)
        ledger.confirm(["r/g/0"])
        assert ledger.redis.zscore(ledger.keys.queued, "r/g/0") == pytest.approx(outcome.not_before, abs=1e-5)

    def test_a_bounced_message_comes_again_at_once_or_after_its_backoff(self, ledger: Ledger) -> None:
        ledger.submit(group())
        ledger.confirm(["r/g/0", "r/g/1"])
        ledger.bounce("r/g/0")
        assert ledger.reap() == ["r/g/0"]
        claim(ledger, "r/g/1")
        ledger.bounce("r/g/1")
        assert queue_score(ledger, "r/g/1") is None
        outcome = fail_late(ledger, "r/g/1", 1, FailureClass.USER)
        ledger.bounce("r/g/1")
        assert ledger.redis.zscore(ledger.keys.queued, "r/g/1") == pytest.approx(outcome.not_before, abs=1e-5)

    def test_a_call_is_bounded(self, ledger: Ledger) -> None:
        ledger.submit(group(size=30), publish_in_s=0)
        assert len(ledger.reap(limit=20)) == 20
        assert len(ledger.reap(limit=20)) == 10


class TestDelivery:
    def ready(self, ledger: Ledger, *names: str, **changes: object) -> None:
        for name in names:
            ledger.submit(group(name, **changes))
            for sample in range(2):
                play(ledger, f"r/{name}/{sample}", float(sample))

    def test_all_or_none_lowest_sequence_first(self, ledger: Ledger) -> None:
        self.ready(ledger, "c", "b", "a")
        assert ledger.take(4, "t") == []
        taken = ledger.take(2, "t")
        assert [(g.id, g.seq, g.size, g.members, g.dead) for g in taken] == [
            ("c", 1, 2, ["r/c/0", "r/c/1"], []),
            ("b", 2, 2, ["r/b/0", "r/b/1"], []),
        ]
        assert ledger.take(2, "t") == taken
        assert ledger.take(2, "u") == []
        assert [g.id for g in ledger.take(1, "u")] == ["a"]

    def test_the_end_of_a_sealed_run_is_short(self, ledger: Ledger) -> None:
        self.ready(ledger, "a", "b", "c")
        ledger.submit(group("d"))
        ledger.seal()
        assert ledger.take(4, "t") == []  # d may still come
        for sample in range(2):
            play(ledger, f"r/d/{sample}")
        ledger.ack("t", [m for g in ledger.take(3, "t") for m in g.members])
        assert not ledger.standing().over
        assert [g.id for g in ledger.take(3, "u")] == ["d"]
        ledger.ack("u", ["r/d/0", "r/d/1"])
        assert ledger.standing().over
        assert ledger.take(3, "v") == []

    def test_an_expired_hold_goes_to_the_next_in_order(self, ledger: Ledger) -> None:
        self.ready(ledger, "a", "b", "c")
        ledger.take(2, "t")
        expire_hold(ledger, "a", "b")
        assert [g.id for g in ledger.take(2, "u")] == ["a", "b"]
        for lost in (lambda: ledger.extend("t"), lambda: ledger.ack("t", ["r/a/0"])):
            with pytest.raises(NotHeld):
                lost()
        ledger.extend("u")
        ledger.ack("u", ["r/a/0", "r/a/1", "r/b/0", "r/b/1"])
        stats = ledger.stats()
        assert (stats["redelivered"], stats["delivered"], stats["duplicates"]) == (2, 4, 0)
        assert (stats["groups_acked"], stats["groups_held"], stats["groups_ready"]) == (2, 0, 1)

    def test_a_late_acknowledgement_counts_while_nobody_else_has_it(self, ledger: Ledger) -> None:
        self.ready(ledger, "a")
        ledger.take(1, "t")
        expire_hold(ledger, "a")
        ledger.ack("t", ["r/a/0", "r/a/1"])
        assert ledger.take(1, "u") == []

    def test_an_extension_lasts(self, ledger: Ledger) -> None:
        self.ready(ledger, "a")
        ledger.take(1, "t", hold_s=1.0)
        ledger.extend("t", 100.0)
        assert 50 < ledger.redis.zscore(ledger.keys.held("train"), "a") - ledger.now() <= 100

    def test_acknowledging_is_idempotent_and_drops_the_bodies(self, ledger: Ledger) -> None:
        ledger.submit(group("a"))
        claim(ledger, "r/a/0", "x")
        journal(ledger, "r/a/0", 1, [prompt()])
        ledger.fail("r/a/0", 1, FailureClass.ENV, "broke")
        play(ledger, "r/a/0")
        play(ledger, "r/a/1")
        ledger.take(1, "t")
        for _ in range(2):
            ledger.ack("t", ["r/a/0", "r/a/1"])
        assert ledger.stats()["delivered"] == 2
        assert ledger.stats()["duplicates"] == 0
        assert not list(ledger.redis.scan_iter("*journal*"))
        assert not ledger.redis.hexists(ledger.keys.job("r/a/0"), "body")
        assert ledger.submit(group("a")).known  # the ids stay
        with pytest.raises(JobConflict):
            ledger.submit(group("a", seed=1))
        with pytest.raises(LedgerError, match="acknowledged"):
            ledger.trajectory("r/a/0")

    def test_what_is_not_held_is_not_acknowledged(self, ledger: Ledger) -> None:
        self.ready(ledger, "a", "b")
        ledger.take(1, "t")
        for ids in (["r/b/0"], ["r/a/0", "r/b/0"], ["r/unheard/0"]):
            with pytest.raises((NotHeld, LedgerError)):
                ledger.ack("t", ids)
        with pytest.raises(NotHeld):
            ledger.ack("nobody", ["r/a/0"])
        with pytest.raises(NotHeld):
            ledger.extend("nobody")
        assert ledger.stats()["delivered"] == 0

    def test_eval_groups_are_apart(self, ledger: Ledger) -> None:
        self.ready(ledger, "e", purpose=Purpose.EVAL)
        self.ready(ledger, "t")
        ledger.submit(group("f", purpose=Purpose.EVAL))
        ledger.seal()
        assert [g.id for g in ledger.take(2, "a")] == ["t"]  # short: only eval groups are open
        ledger.ack("a", ["r/t/0", "r/t/1"])
        assert ledger.standing().over
        assert not ledger.standing(Purpose.EVAL).over
        assert [g.id for g in ledger.take(1, "b", purpose=Purpose.EVAL)] == ["e"]

    def test_dead_members_leave_a_viable_group(self, ledger: Ledger) -> None:
        ledger.submit(group("a", size=3, min_viable=2))
        play(ledger, "r/a/0")
        play(ledger, "r/a/2")
        claim(ledger, "r/a/1")
        assert ledger.take(1, "t") == []
        ledger.fail("r/a/1", 1, FailureClass.CANCELLED, "x")
        (taken,) = ledger.take(1, "t")
        assert (taken.members, taken.dead) == (["r/a/0", "r/a/2"], ["r/a/1"])

    def test_a_group_that_is_not_viable_is_dropped_once_settled(self, ledger: Ledger) -> None:
        ledger.submit(group("a"))
        claim(ledger, "r/a/1")
        ledger.fail("r/a/1", 1, FailureClass.CANCELLED, "x")
        assert ledger.stats()["groups_open"] == 1  # its sibling may still be looked at
        play(ledger, "r/a/0")
        stats = ledger.stats()
        assert (stats["groups_open"], stats["groups_dropped"], stats["dropped"]) == (0, 1, 1)
        assert stats["done"] + stats["dead"] == stats["submitted"]
        ledger.seal()
        assert ledger.standing().over

    def test_a_job_that_a_consumer_cannot_read_is_dead(self, ledger: Ledger) -> None:
        self.ready(ledger, "a", "b", min_viable=1)
        ledger.take(2, "t")
        ledger.condemn("t", "r/a/0", "torn")
        ledger.condemn("t", "r/a/0", "torn")
        with pytest.raises(NotHeld):
            ledger.condemn("u", "r/b/0", "torn")
        (first, second) = ledger.take(2, "u")
        assert (first.members, first.dead) == (["r/a/1"], ["r/a/0"])
        assert second.members == ["r/b/0", "r/b/1"]
        stats = ledger.stats()
        assert (stats["done"], stats["dead"], stats["redelivered"]) == (3, 1, 0)
        # As an account of what was delivered counts it: without the one that nobody can read.
        assert (stats["stops"], stats["turns"], stats["sampled_tokens"], stats["total_tokens"]) == (
            {"done": 3},
            6,
            12,
            33,
        )
        assert stats["reward_mean"] == pytest.approx(2 / 3)
        ledger.condemn("u", "r/a/1", "torn too")
        assert ledger.stats()["groups_dropped"] == 1


class TestRun:
    def test_the_first_worker_fixes_the_hashes(self, ledger: Ledger) -> None:
        assert not ledger.fix_hashes("tok", "tmpl")  # of a run that nobody has submitted to
        assert not ledger.redis.exists(ledger.keys.meta)
        ledger.submit(group())
        assert ledger.fix_hashes("tok", "tmpl")
        assert ledger.fix_hashes("tok", "tmpl")
        with pytest.raises(SettingsError, match="tokenizer"):
            ledger.fix_hashes("other", "tmpl")
        with pytest.raises(SettingsError, match="template"):
            ledger.fix_hashes("tok", "other")

    def test_an_unplayed_and_a_half_played_job_can_be_shown(self, ledger: Ledger) -> None:
        ledger.submit(group())
        assert ledger.trajectory("r/g/0").events == []
        claim(ledger, "r/g/0")
        journal(ledger, "r/g/0", 1, [prompt()])
        found = ledger.trajectory("r/g/0")
        assert list(found.events) == [prompt()]
        assert (found.stop, found.header.attempt) == (None, 1)
        state = ledger.job("r/g/0")
        assert state is not None
        assert state.lease_until is not None
        assert ledger.job("r/nobody/0") is None
        with pytest.raises(LedgerError, match="unknown"):
            ledger.trajectory("r/nobody/0")
