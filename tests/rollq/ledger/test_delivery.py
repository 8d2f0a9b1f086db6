"""How finished groups are handed out, held, acknowledged, skipped and rejected. Tests age holds by
their scores.
"""

import pytest

from rollq.errors import ContractError, FailureClass, JobConflict, LedgerError, NotHeld
from rollq.job import Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import ack, deliveries, end_holds, finish_groups, play_groups, take
from tests.rollq.samples import claim, group, is_over, journal, play, prompt, reader


def ids(ledger: Ledger, groups: int, token: str, **how: object) -> list[str]:
    return [found.id for found in take(ledger, groups, token, **how)]


class TestTake:
    def test_eval_groups_are_apart(self, ledger: Ledger) -> None:
        finish_groups(ledger, "e", purpose=Purpose.EVAL)
        finish_groups(ledger, "t")
        ledger.submit(group("f", purpose=Purpose.EVAL))
        ledger.submit(group("u"))
        ledger.seal()
        assert take(ledger, 3, "a") == []  # u may still come
        play_groups(ledger, "u")
        assert ids(ledger, 3, "a") == ["t", "u"]  # short: only eval groups are open
        ack(ledger, "a")
        assert is_over(ledger)
        assert not is_over(ledger, Purpose.EVAL)
        assert ids(ledger, 1, "b", purpose=Purpose.EVAL) == ["e"]


class TestShortLastBatch:
    def test_it_waits_for_holds_that_may_come_back(self, ledger: Ledger) -> None:
        """Else a run ends with two short batches when a consumer has died."""
        finish_groups(ledger, *"abcde", seal=True)
        assert ids(ledger, 2, "dead/0") == ["a", "b"]
        assert ids(ledger, 2, "live/0") == ["c", "d"]
        ack(ledger, "live/0")
        first = deliveries(ledger).take(4, "live/1")
        assert (list(first.groups), first.last, first.others, first.over) == ([], False, 2, False)
        assert ids(ledger, 4, "live/1", since=first.at) == []
        end_holds(ledger, "a", "b")
        assert ids(ledger, 4, "live/1", since=first.at) == ["a", "b", "e"]

    def test_a_hold_that_was_renewed_meanwhile_is_a_live_consumers(self, ledger: Ledger) -> None:
        finish_groups(ledger, *"abc", seal=True)
        assert ids(ledger, 2, "other/0") == ["a", "b"]
        since = deliveries(ledger).take(2, "me/0").at
        deliveries(ledger).renew_holds(["other/0"])
        assert ids(ledger, 2, "me/0", since=since) == ["c"]

    def test_a_consumer_that_trains_is_waited_for(self, ledger: Ledger) -> None:
        finish_groups(ledger, *"ab", seal=True)
        ids(ledger, 1, "other/0")
        ids(ledger, 1, "me/0")
        ack(ledger, "me/0")
        since = deliveries(ledger).take(1, "me/1", wake=True).at
        deliveries(ledger).renew_holds(["other/0"])
        assert not deliveries(ledger).take(1, "me/1", since=since, wake=True).over
        end_holds(ledger, "a")  # it died
        assert ids(ledger, 1, "me/1", since=since) == ["a"]


class TestWakeUps:
    def wakes(self, ledger: Ledger) -> list[str]:
        found = ledger.redis.scan_iter(f"{ledger.keys.prefix}wake:*")
        return sorted(key.decode().rpartition(":")[2] for key in found)

    def test_enough_ready_groups_wake_who_waits_for_them(self, ledger: Ledger) -> None:
        finish_groups(ledger, "a")
        ledger.submit(group("b"))
        ledger.submit(group("c"))
        for groups in (2, 3):
            assert take(ledger, groups, f"wants{groups}/0", wake=True) == []
        play(ledger, "r/b/0")
        assert self.wakes(ledger) == []
        play(ledger, "r/b/1")
        assert self.wakes(ledger) == ["wants2"]
        assert deliveries(ledger).wait("wants2", 60.0)
        assert ids(ledger, 2, "wants2/0", wake=True) == ["a", "b"]
        play_groups(ledger, "c")  # nothing is open any more
        assert self.wakes(ledger) == ["wants3"]

    @pytest.mark.parametrize(
        "event", ["a seal", "a hold ran out", "an acknowledgement", "a skip", "a rejection"]
    )
    def test_whatever_may_bring_a_batch_or_the_end_wakes(self, ledger: Ledger, event: str) -> None:
        finish_groups(ledger, *"ab")
        ids(ledger, 2, "other/0")
        take(ledger, 9, "me/0", wake=True)
        assert self.wakes(ledger) == []
        match event:
            case "a seal":
                ledger.seal()
            case "a hold ran out":
                end_holds(ledger, "a", "b")
                take(ledger, 9, "a third one/0")  # only a consumer that asks finds out
            case "an acknowledgement":
                ack(ledger, "other/0", "a")
            case "a skip":
                deliveries(ledger).skip("other/0", "a", "too easy")
            case "a rejection":
                deliveries(ledger).reject("other/0", "r/a/0", "torn")
        assert self.wakes(ledger) == ["me"]

    def test_who_got_groups_is_not_woken(self, ledger: Ledger) -> None:
        take(ledger, 1, "t/0", wake=True)
        finish_groups(ledger, "a")
        deliveries(ledger).wait("t", 60.0)
        assert ids(ledger, 1, "t/0", wake=True) == ["a"]
        finish_groups(ledger, "b")
        assert self.wakes(ledger) == []


class TestAcknowledgement:
    def test_a_late_one_counts_while_no_other_consumer_has_the_group(self, ledger: Ledger) -> None:
        finish_groups(ledger, "a", "b")
        take(ledger, 2, "t")
        end_holds(ledger, "a", "b")
        ack(ledger, "t", "a")
        assert take(ledger, 2, "u") == []  # gives b back
        ack(ledger, "t", "b")
        assert reader(ledger).stats()["delivered"] == 4

    def test_it_is_idempotent_and_leaves_one_small_record(self, ledger: Ledger) -> None:
        ledger.submit(group("a"))
        lease = claim(ledger, "r/a/0", "x").lease
        journal(ledger, "r/a/0", lease, [prompt()])
        ledger.fail("r/a/0", lease, FailureClass.ENV, "broke")
        play_groups(ledger, "a")
        take(ledger, 1, "t")
        for _ in range(2):
            ack(ledger, "t", "a")
        stats = reader(ledger).stats()
        assert (stats["delivered"], stats["groups_acked"]) == (2, 1)
        of_the_group = {key.decode() for key in ledger.redis.scan_iter("*") if b"count" not in key}
        assert of_the_group == {
            "rollq:runs",
            "rollq:active",
            ledger.keys.meta,
            ledger.keys.acked("a"),
        }
        assert ledger.submit(group("a")).acked  # the ids stay
        with pytest.raises(JobConflict):
            ledger.submit(group("a", seed=1))
        with pytest.raises(LedgerError, match="acknowledged"):
            reader(ledger).trajectory("r/a/0")

    def test_records_expire_when_the_run_says_so(self, ledger: Ledger) -> None:
        ledger.forget_after(2.0)
        finish_groups(ledger, "a")
        take(ledger, 1, "t")
        ack(ledger, "t")
        assert 86400 < ledger.redis.ttl(ledger.keys.acked("a")) <= 2 * 86400

    def test_a_record_stays_as_long_as_a_dead_member(self, ledger: Ledger) -> None:
        ledger.forget_after(2.0)
        jobs = group("a", min_viable=1)
        ledger.submit(jobs)
        ledger.fail("r/a/0", claim(ledger, "r/a/0").lease, FailureClass.CANCELLED, "x")
        play(ledger, "r/a/1")
        take(ledger, 1, "t")
        ack(ledger, "t")
        assert [letter.job_id for letter in reader(ledger).dead()] == ["r/a/0"]
        assert reader(ledger).trajectory("r/a/0").job.sample == 0
        assert ledger.redis.ttl(ledger.keys.acked("a")) == -1
        DeadLetters(ledger.redis, "r").discard("r/a/0")
        assert ledger.redis.ttl(ledger.keys.acked("a")) > 86400
        ledger.redis.delete(ledger.keys.acked("a"))  # as if that time had passed
        assert len(ledger.submit(jobs).new) == 2


def test_only_who_holds_it_skips_and_rejects(ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    take(ledger, 1, "t")
    with pytest.raises(NotHeld):
        deliveries(ledger).skip("u", "a", "no")
    with pytest.raises(NotHeld):
        deliveries(ledger).reject("u", "r/a/0", "torn")
    for reason in ("", "x" * 65):
        with pytest.raises(ContractError):
            deliveries(ledger).skip("t", "a", reason)
    assert reader(ledger).stats()["groups_skipped"] == 0
