"""What each step of the ledger does, on a real Redis. Time is Redis's: tests age leases and holds by their scores."""

from dataclasses import replace

import pytest

from rollq.errors import (
    ContractError,
    FailureClass,
    Fenced,
    JobConflict,
    LedgerError,
    SettingsError,
)
from rollq.job import Budget
from rollq.ledger import constants
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import runs
from rollq.ledger.replies import Outcome, Refusal, State
from rollq.trajectory import Header, Stop
from rollq.wire.codec import encode_event, encode_header
from tests.rollq.samples import claim, events, group, job, journal, play, prompt, reader, reap


def expire_lease(ledger: Ledger, job_id: str, attempt: int) -> None:
    ledger.redis.zadd(ledger.keys.leased, {f"{job_id}#{attempt}": 1}, xx=True)


def forget_backoff(ledger: Ledger, job_id: str) -> None:
    ledger.redis.hset(ledger.keys.job(job_id), "not_before", 0)


def queue_score(ledger: Ledger, job_id: str) -> float | None:
    """When it is published next, from now."""
    score = ledger.redis.zscore(ledger.keys.queued, job_id)
    return None if score is None else score - ledger.scripts.now()


def fail_late(ledger: Ledger, job_id: str, attempt: int, failure: FailureClass) -> Outcome:
    """With a backoff that is longer than any test takes."""
    outcome = ledger.fail(job_id, attempt, failure, "x")
    later = ledger.scripts.now() + 29
    ledger.redis.hset(ledger.keys.job(job_id), "not_before", later)
    ledger.redis.zadd(ledger.keys.queued, {job_id: later})
    return replace(outcome, not_before=later)


class TestSubmit:
    def test_a_group_is_entered_once(self, ledger: Ledger) -> None:
        assert ledger.submit(group()).new == ["r/g/0", "r/g/1"]
        assert ledger.submit(group()).known == ["r/g/0", "r/g/1"]
        assert ledger.submit(group()[1:]).known == ["r/g/1"]
        stats = reader(ledger).stats()
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
        assert reader(ledger).stats()["submitted"] == 2

    def test_a_new_group_must_be_whole(self, ledger: Ledger) -> None:
        with pytest.raises(ContractError, match=r"r/g.*1 of 2"):
            ledger.submit(group()[:1])
        with pytest.raises(ContractError, match="twice"):
            ledger.submit([job(0), job(0)])
        with pytest.raises(ContractError, match="another group"):
            ledger.submit([job(0), job(1, "h")])
        with pytest.raises(ContractError, match="differ"):
            ledger.submit([job(0), job(1, min_viable=1)])
        assert reader(ledger).stats()["submitted"] == 0


class TestClaim:
    def test_refusals(self, ledger: Ledger) -> None:
        ledger.submit(group())
        assert ledger.claim("r/x/0", worker="w", token="t") == Refusal("unknown")
        play(ledger, "r/g/0")
        assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("done")
        claim(ledger, "r/g/1", "mine")
        assert ledger.claim("r/g/1", worker="v", token="yours") == Refusal("leased")
        with pytest.raises(ContractError, match="not of run r"):
            ledger.claim("other/g/0", worker="w", token="t")
        with pytest.raises(ContractError, match="not a job id"):
            ledger.claim("r/g", worker="w", token="t")

    def test_a_lease_ends_with_the_deadline(self, ledger: Ledger) -> None:
        ledger.submit(group(budget=Budget(deadline_s=2.0)))
        before = ledger.scripts.now()
        claim(ledger, "r/g/0")
        end = ledger.redis.zscore(ledger.keys.leased, "r/g/0#1")
        assert before + 2.0 <= end <= ledger.scripts.now() + 2.0
        ledger.append("r/g/0", 1, 0, encode_header(Header(attempt=1)))
        assert ledger.renew_leases([("r/g/0", 1)], left_s=[1.9]) == []
        assert ledger.redis.zscore(ledger.keys.leased, "r/g/0#1") - ledger.scripts.now() <= 2.0
        before = ledger.scripts.now()
        ledger.renew_leases([("r/g/0", 1)], left_s=[60.0])  # the engine was away for a minute
        assert before + 15.0 <= ledger.redis.zscore(ledger.keys.leased, "r/g/0#1") <= ledger.scripts.now() + 15.0

    def test_an_early_one_is_refused_and_comes_again_in_time(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        outcome = fail_late(ledger, "r/g/0", 1, FailureClass.ENGINE)
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": ledger.scripts.now() + 600})  # published all the same
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
        assert reader(ledger).dead()[0].failure is FailureClass.JOB


class TestFail:
    @pytest.mark.parametrize(
        ("failure", "budget"),
        [("engine", 5), ("user", 5), ("worker", 5), ("env", 2), ("job", 2), ("cancelled", 1)],
    )
    def test_a_budget_counts_failures_of_its_class(self, ledger: Ledger, failure: str, budget: int) -> None:
        ledger.submit(group())
        for attempt in range(1, budget + 1):
            claim(ledger, "r/g/0", str(attempt))
            before = ledger.scripts.now()
            outcome = ledger.fail("r/g/0", attempt, FailureClass(failure), f"reason {attempt}")
            assert outcome.status == ("dead" if attempt == budget else "queued")
            if outcome.status == State.QUEUED and failure in ("engine", "user", "worker"):
                assert before + 0.99 < outcome.not_before < ledger.scripts.now() + min(30, 2**attempt)
            else:
                assert outcome.not_before == 0
            forget_backoff(ledger, "r/g/0")
        (letter,) = reader(ledger).dead()
        assert (letter.job_id, letter.failure, letter.attempts) == ("r/g/0", failure, budget)
        assert letter.reason == f"reason {budget}"
        assert reader(ledger).stats()["failures"] == {failure: budget}
        found = reader(ledger).trajectory("r/g/0")
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
        assert queue_score(ledger, "r/g/0") == pytest.approx(-ledger.scripts.now())
        assert reader(ledger).stats()["dead"] == 0

    def test_only_a_turn_beyond_all_before_resets_the_workers_budget(self, ledger: Ledger) -> None:
        ledger.submit(group())
        for attempt in range(1, 5):  # kills its worker after the first turn, each time
            claim(ledger, "r/g/0", f"a{attempt}")
            if attempt == 1:
                journal(ledger, "r/g/0", attempt, events()[:3])
            expire_lease(ledger, "r/g/0", attempt)
            reap(ledger)
        state = reader(ledger).job("r/g/0")
        assert state.failures == {FailureClass.WORKER: 4}
        claim(ledger, "r/g/0", "b")
        for index, event in enumerate(events()[3:5], 4):
            ledger.append("r/g/0", 5, index, encode_event(event, "r/g/0"))
        state = reader(ledger).job("r/g/0")
        assert state.failures == {}

    def test_a_reason_may_hold_anything(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.fail("r/g/0", 1, FailureClass.CANCELLED, "\ud800" + "x" * 100_000)
        assert 7000 < len(reader(ledger).dead()[0].reason) <= 8000


class TestReap:
    def test_an_expired_lease_costs_one_worker_failure(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        expire_lease(ledger, "r/g/0", 1)
        assert ledger.reap() == []  # without permission nothing expires
        assert reap(ledger) == ["r/g/0"]
        with pytest.raises(Fenced):
            ledger.append("r/g/0", 1, 0, b"late")
        state = reader(ledger).job("r/g/0")
        assert (state.state, state.failures, state.worker) == ("queued", {FailureClass.WORKER: 1}, "w")
        assert claim(ledger, "r/g/0", "u").attempt == 2

    def test_the_last_expiry_kills(self, ledger: Ledger) -> None:
        ledger.submit(group())
        for attempt in range(1, 6):
            claim(ledger, "r/g/0", str(attempt))
            expire_lease(ledger, "r/g/0", attempt)
            reap(ledger)
        (letter,) = reader(ledger).dead()
        assert (letter.failure, letter.attempts) == (FailureClass.WORKER, 5)
        assert "lease of w expired" in letter.reason

    def test_publishing_is_an_outbox(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "PUBLISHING_S", 100.0)
        ledger.submit(group(), publish_in_s=0)
        before = ledger.scripts.now()
        assert ledger.reap() == ["r/g/0", "r/g/1"]
        assert ledger.reap() == []  # being published
        for job_id in ("r/g/0", "r/g/1"):
            assert before + 100 <= ledger.redis.zscore(ledger.keys.queued, job_id) <= ledger.scripts.now() + 100
        before = ledger.scripts.now()
        ledger.confirm(["r/g/0"])
        assert before + 600 <= ledger.redis.zscore(ledger.keys.queued, "r/g/0") <= ledger.scripts.now() + 600
        assert queue_score(ledger, "r/g/1") <= 100
        ledger.redis.zadd(ledger.keys.queued, {"r/g/1": ledger.scripts.now() + 30})
        assert ledger.reap(broker_empty=True) == []  # perhaps still on its way
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": ledger.scripts.now() + 494})
        assert ledger.reap(broker_empty=False) == []
        assert ledger.reap(broker_empty=True) == ["r/g/0"]

    def test_a_confirmation_does_not_hide_what_happened_since(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "PUBLISHING_S", 100.0)
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
        ledger.republish("r/g/0")
        assert ledger.reap() == ["r/g/0"]
        claim(ledger, "r/g/1")
        ledger.republish("r/g/1")
        assert queue_score(ledger, "r/g/1") is None
        outcome = fail_late(ledger, "r/g/1", 1, FailureClass.USER)
        ledger.republish("r/g/1")
        assert ledger.redis.zscore(ledger.keys.queued, "r/g/1") == pytest.approx(outcome.not_before, abs=1e-5)

    def test_a_call_is_bounded(self, ledger: Ledger) -> None:
        ledger.submit(group(size=30), publish_in_s=0)
        assert len(ledger.reap(limit=20)) == 20
        assert len(ledger.reap(limit=20)) == 10


class TestRun:
    def test_the_first_worker_fixes_the_hashes(self, ledger: Ledger) -> None:
        assert not ledger.fix_hashes("tok", "tmpl")  # an unknown run
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
        assert reader(ledger).trajectory("r/g/0").events == []
        claim(ledger, "r/g/0")
        journal(ledger, "r/g/0", 1, [prompt()])
        found = reader(ledger).trajectory("r/g/0")
        assert list(found.events) == [prompt()]
        assert (found.stop, found.header.attempt) == (None, 1)
        state = reader(ledger).job("r/g/0")
        assert state.lease_until is not None
        assert reader(ledger).job("r/nobody/0") is None
        with pytest.raises(LedgerError, match="unknown"):
            reader(ledger).trajectory("r/nobody/0")
