"""What each step of the ledger does, on a real Redis. Time is Redis's: tests age leases and holds
by their scores.
"""

import re
from dataclasses import replace

import pytest

from rollq.errors import (
    ContractError,
    FailureClass,
    Gap,
    JobConflict,
)
from rollq.events import Stop
from rollq.job import Budget
from rollq.ledger import constants
from rollq.ledger.constants import BUDGETS
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Cursor, JobMessage, Outcome, Refusal, State
from rollq.trajectory import Header
from rollq.wire.codec import encode_header
from tests.conftest import REPO
from tests.rollq.other_constants import change_constants
from tests.rollq.samples import claim, group, job, reader, reap


def due(ledger: Ledger, empty: bool = False) -> list[str]:
    """What is to be sent, while `empty` says whether the broker has nothing."""
    return [message.job_id for message in ledger.reap(100, ["rollq"] if empty else [])]


def queue_score(ledger: Ledger, job_id: str) -> float | None:
    """When it is sent next, from now."""
    score = ledger.redis.zscore(ledger.keys.queued, job_id)
    return None if score is None else score - ledger.scripts.now()


def fail_late(ledger: Ledger, job_id: str, lease: str, failure: FailureClass) -> Outcome:
    """With a backoff that is longer than any test takes."""
    outcome = ledger.fail(job_id, lease, failure, "x")
    later = ledger.scripts.now() + 29
    ledger.redis.hset(ledger.keys.job(job_id), "not_before", later)
    ledger.redis.zadd(ledger.keys.queued, {job_id: later})
    return replace(outcome, not_before=later)


class TestSubmit:
    def test_other_content_changes_nothing(self, ledger: Ledger) -> None:
        ledger.submit(group())
        before = ledger.redis.hgetall(ledger.keys.job("r/g/1"))
        with pytest.raises(JobConflict, match="r/g/1"):
            ledger.submit([job(0), job(1, seed=9)])
        with pytest.raises(JobConflict, match=r"r/g/0 .*\(size was 2, not 3"):
            ledger.submit(group(size=3))
        ledger.submit(group("h", env_args={"n": 1}))
        with pytest.raises(JobConflict, match="r/h/0 was submitted before with other content:"):
            ledger.submit(group("h", env_args={"n": 1.0}))  # which Python calls equal
        ledger.seal()
        with pytest.raises(JobConflict, match=r"\(seed was 0, not 9\).* The run is sealed"):
            ledger.submit(group(seed=9))
        assert ledger.redis.hgetall(ledger.keys.job("r/g/1")) == before
        assert reader(ledger).stats()["submitted"] == 4

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

    def test_a_cursor_that_does_not_follow_is_a_gap(self, ledger: Ledger) -> None:
        """Redis came back without the last groups of the source."""
        ledger.submit(group("a"), source="s", cursor=Cursor(1, 2, "aa"))
        for name in ("c", "a"):
            with pytest.raises(Gap, match="1 of the 2") as caught:
                ledger.submit(group(name), source="s", cursor=Cursor(3, 6, "cc"))
            assert caught.value.cursor == Cursor(1, 2, "aa")
        assert reader(ledger).stats()["submitted"] == 2
        ledger.submit(group("b"), source="s", cursor=Cursor(2, 4, "bb"))
        ledger.submit(group("c"), source="s", cursor=Cursor(3, 6, "cc"))
        assert ledger.cursor("s") == Cursor(3, 6, "cc")
        ledger.forget_source("s")
        with pytest.raises(Gap, match="0 of the 3"):
            ledger.submit(group("d"), source="s", cursor=Cursor(4, 8, "dd"))

    def test_only_so_many_groups_are_unacknowledged(self, ledger: Ledger) -> None:
        assert ledger.submit(group("a"), ahead=2).new
        assert ledger.submit(group("b"), ahead=2).new
        full = ledger.submit(group("c"), ahead=2)
        assert (full.full, full.new, reader(ledger).standing().full) == (True, (), 2)
        assert ledger.submit(group("a"), ahead=2).known
        assert ledger.submit(group("e", purpose="eval"), ahead=2).new
        assert ledger.submit(group("c"), ahead=3).new

    def test_a_body_is_stored_once_for_a_group(self, ledger: Ledger) -> None:
        ledger.submit([*group(size=3)[:2], job(2, size=3, seed=9)])
        for sample, stored in enumerate((False, False, True)):
            assert ledger.redis.hexists(ledger.keys.job(f"r/g/{sample}"), "body") is stored
        jobs = [claim(ledger, f"r/g/{sample}").job for sample in range(3)]
        assert [(of.sample, of.seed) for of in jobs] == [(0, 0), (1, 0), (2, 9)]


class TestClaim:
    def test_a_job_of_another_run_and_what_is_no_job(self, ledger: Ledger) -> None:
        with pytest.raises(ContractError, match="not of run r"):
            ledger.claim("other/g/0", worker="w", token="t")
        with pytest.raises(ContractError, match="not a job id"):
            ledger.claim("r/g", worker="w", token="t")

    def test_a_lease_ends_with_the_deadline(self, ledger: Ledger) -> None:
        ledger.submit(group(budget=Budget(deadline_s=2.0)))
        before = ledger.scripts.now()
        claim(ledger, "r/g/0")
        end = ledger.redis.zscore(ledger.keys.leased, "r/g/0#1#token")
        assert before + 2.0 <= end <= ledger.scripts.now() + 2.0
        ledger.append("r/g/0", "1#token", 0, [encode_header(Header(attempt=1))])
        assert ledger.renew_leases([("r/g/0", "1#token")], left_s=[1.9]) == []
        assert (
            ledger.redis.zscore(ledger.keys.leased, "r/g/0#1#token") - ledger.scripts.now() <= 2.0
        )
        before = ledger.scripts.now()
        # The engine was away for a minute.
        ledger.renew_leases([("r/g/0", "1#token")], left_s=[60.0])
        assert (
            before + 15.0
            <= ledger.redis.zscore(ledger.keys.leased, "r/g/0#1#token")
            <= ledger.scripts.now() + 15.0
        )

    def test_an_early_one_is_refused_and_comes_again_in_time(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        outcome = fail_late(ledger, "r/g/0", "1#token", FailureClass.ENGINE)
        # Sent all the same.
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": ledger.scripts.now() + 600})
        assert ledger.claim("r/g/0", worker="w", token="t") == Refusal(
            "early", pytest.approx(outcome.not_before)
        )
        assert ledger.redis.zscore(ledger.keys.queued, "r/g/0") == pytest.approx(
            outcome.not_before, abs=1e-5
        )

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
    def test_a_budget_counts_failures_of_its_class(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, failure: str, budget: int
    ) -> None:
        monkeypatch.setattr("random.random", lambda: 0.5)
        ledger.submit(group())
        for attempt in range(1, budget + 1):
            lease = claim(ledger, "r/g/0", str(attempt)).lease
            before = ledger.scripts.now()
            outcome = ledger.fail("r/g/0", lease, FailureClass(failure), f"reason {attempt}")
            assert outcome.status == ("dead" if attempt == budget else "queued")
            if outcome.status == State.QUEUED and failure in ("engine", "user", "worker"):
                backoff = 1 + 0.5 * (min(30, 2**attempt) - 1)
                assert before - 0.01 < outcome.not_before - backoff < ledger.scripts.now()
            else:
                assert outcome.not_before == 0
            ledger.redis.hset(ledger.keys.job("r/g/0"), "not_before", 0)
        (letter,) = reader(ledger).dead()
        assert (letter.job_id, letter.failure, letter.attempts) == ("r/g/0", failure, budget)
        assert letter.reason == f"reason {budget}"
        assert reader(ledger).stats()["failures"] == {failure: budget}
        found = reader(ledger).trajectory("r/g/0")
        assert found.stop is (Stop.ABORTED if failure == "cancelled" else Stop.FAILED)
        assert (found.reward, found.failure) == (None, failure)

    def test_a_reason_may_hold_anything(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.fail("r/g/0", "1#token", FailureClass.CANCELLED, "\ud800" + "x" * 100_000)
        assert 7000 < len(reader(ledger).dead()[0].reason) <= 8000


class TestReap:
    def test_sending_is_an_outbox(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        change_constants(monkeypatch, SENDING_S=100.0)
        ledger.submit(group(), send_in_s=0)
        assert due(ledger) == ["r/g/0", "r/g/1"]
        assert due(ledger) == []  # being sent
        for job_id in ("r/g/0", "r/g/1"):
            assert queue_score(ledger, job_id) == pytest.approx(100, abs=30)
        ledger.confirm(["r/g/0"])
        assert queue_score(ledger, "r/g/0") == pytest.approx(600, abs=30)
        assert queue_score(ledger, "r/g/1") <= 100
        ledger.redis.zadd(ledger.keys.queued, {"r/g/1": ledger.scripts.now() + 30})
        assert due(ledger, empty=True) == []  # perhaps still on its way
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": ledger.scripts.now() + 494})
        assert due(ledger) == []
        assert due(ledger, empty=True) == ["r/g/0"]

    def test_a_confirmation_does_not_hide_what_happened_since(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change_constants(monkeypatch, SENDING_S=100.0)
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.confirm(["r/g/0", "r/unknown/0"])
        assert queue_score(ledger, "r/g/0") is None
        ledger.release("r/g/0", "1#token")
        ledger.confirm(["r/g/0"])
        assert due(ledger) == ["r/g/0"]
        claim(ledger, "r/g/0", "u")
        outcome = fail_late(ledger, "r/g/0", "2#u", FailureClass.ENGINE)
        ledger.confirm(["r/g/0"])
        assert ledger.redis.zscore(ledger.keys.queued, "r/g/0") == pytest.approx(
            outcome.not_before, abs=1e-5
        )

    def test_a_bounced_message_comes_again_after_its_backoff(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/1")
        outcome = fail_late(ledger, "r/g/1", "1#token", FailureClass.USER)
        ledger.resend("r/g/1")
        assert ledger.redis.zscore(ledger.keys.queued, "r/g/1") == pytest.approx(
            outcome.not_before, abs=1e-5
        )

    def test_what_was_interrupted_goes_first_then_eval_then_the_rest(self, ledger: Ledger) -> None:
        ledger.submit(group("given-back", size=1), send_in_s=0)
        assert reap(ledger) == ["r/given-back/0"]
        for name, purpose in (("z", "train"), ("e", "eval"), ("a", "train"), ("b", "train")):
            ledger.submit(
                group(name, size=1, purpose=purpose, queue="q" if name == "b" else "rollq"),
                send_in_s=0,
            )
        for name in ("b", "a"):
            claim(ledger, f"r/{name}/0", name)
            ledger.release(f"r/{name}/0", f"1#{name}")
        ledger.resend("r/given-back/0")
        back, first, second, third, last = ledger.reap()
        assert back == JobMessage("r/given-back/0", "rollq", constants.INTERRUPTED)
        assert first == JobMessage("r/a/0", "rollq", constants.INTERRUPTED)
        assert second == JobMessage("r/b/0", "q", constants.INTERRUPTED)
        assert third == JobMessage("r/e/0", "rollq", constants.EVAL)
        assert last == JobMessage("r/z/0", "rollq", constants.NEW)

    def test_only_the_jobs_of_an_empty_queue_come_again(self, ledger: Ledger) -> None:
        for name, queue in (("a", "p"), ("b", "q")):
            ledger.submit(group(name, size=1, queue=queue))
            ledger.redis.zadd(ledger.keys.queued, {f"r/{name}/0": ledger.scripts.now() + 400})
        assert [message.job_id for message in ledger.reap(100, ["q"])] == ["r/b/0"]

    def test_a_call_is_bounded(self, ledger: Ledger) -> None:
        ledger.submit(group(size=30), send_in_s=0)
        assert len(ledger.reap(limit=20)) == 20
        assert len(ledger.reap(limit=20)) == 10


def test_the_page_has_the_budgets() -> None:
    rows = re.findall(
        r"^\| (`.*`) \| (\d)\w\w(?: failure)? \|",
        (REPO / "docs" / "ledger.md").read_text(),
        re.MULTILINE,
    )
    written = {name: int(most) for names, most in rows for name in re.findall(r"`(\w+)`", names)}
    assert written == {failure.value: most for failure, most in BUDGETS.items()}
