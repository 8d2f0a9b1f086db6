"""How finished groups are handed out, held, acknowledged and rejected. Tests age holds by their scores."""

import pytest

from rollq.errors import FailureClass, JobConflict, LedgerError, NotHeld
from rollq.job import Purpose
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import end_holds, finish_groups, play_groups
from tests.rollq.samples import claim, group, is_over, journal, play, prompt, reader


class TestDelivery:
    def test_all_or_none_lowest_sequence_first(self, ledger: Ledger) -> None:
        finish_groups(ledger, "c", "b", "a")
        assert ledger.take(4, "t") == []
        taken = ledger.take(2, "t")
        assert [(g.id, g.seq, g.size, g.members, g.dead) for g in taken] == [
            ("c", 1, 2, ["r/c/0", "r/c/1"], []),
            ("b", 2, 2, ["r/b/0", "r/b/1"], []),
        ]
        assert ledger.take(2, "t") == taken
        assert ledger.take(2, "u") == []
        assert [g.id for g in ledger.take(1, "u")] == ["a"]

    def test_an_expired_hold_goes_to_the_next_in_order(self, ledger: Ledger) -> None:
        finish_groups(ledger, "a", "b", "c")
        ledger.take(2, "t")
        end_holds(ledger, "a", "b")
        assert [g.id for g in ledger.take(2, "u")] == ["a", "b"]
        for lost in (lambda: ledger.extend_hold("t"), lambda: ledger.ack("t", ["r/a/0"])):
            with pytest.raises(NotHeld):
                lost()
        ledger.extend_hold("u")
        ledger.ack("u", ["r/a/0", "r/a/1", "r/b/0", "r/b/1"])
        stats = reader(ledger).stats()
        assert (stats["redelivered"], stats["delivered"], stats["duplicates"]) == (2, 4, 0)
        assert (stats["groups_acked"], stats["groups_held"], stats["groups_ready"]) == (2, 0, 1)

    def test_a_late_acknowledgement_counts_while_no_other_consumer_has_it(self, ledger: Ledger) -> None:
        finish_groups(ledger, "a")
        ledger.take(1, "t")
        end_holds(ledger, "a")
        ledger.ack("t", ["r/a/0", "r/a/1"])
        assert ledger.take(1, "u") == []

    def test_an_extension_lasts(self, ledger: Ledger) -> None:
        finish_groups(ledger, "a")
        ledger.take(1, "t", hold_s=1.0)
        ledger.extend_hold("t", 100.0)
        assert 50 < ledger.redis.zscore(f"{ledger.keys.prefix}held:train", "a") - ledger.scripts.now() <= 100

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
        assert reader(ledger).stats()["delivered"] == 2
        assert reader(ledger).stats()["duplicates"] == 0
        assert not list(ledger.redis.scan_iter("*journal*"))
        assert not ledger.redis.hexists(ledger.keys.job("r/a/0"), "body")
        assert ledger.submit(group("a")).known  # the ids stay
        with pytest.raises(JobConflict):
            ledger.submit(group("a", seed=1))
        with pytest.raises(LedgerError, match="acknowledged"):
            reader(ledger).trajectory("r/a/0")

    def test_what_is_not_held_is_not_acknowledged(self, ledger: Ledger) -> None:
        finish_groups(ledger, "a", "b")
        ledger.take(1, "t")
        for ids in (["r/b/0"], ["r/a/0", "r/b/0"], ["r/unheard/0"]):
            with pytest.raises((NotHeld, LedgerError)):
                ledger.ack("t", ids)
        with pytest.raises(NotHeld):
            ledger.ack("nobody", ["r/a/0"])
        with pytest.raises(NotHeld):
            ledger.extend_hold("nobody")
        assert reader(ledger).stats()["delivered"] == 0

    def test_eval_groups_are_apart(self, ledger: Ledger) -> None:
        finish_groups(ledger, "e", purpose=Purpose.EVAL)
        finish_groups(ledger, "t")
        ledger.submit(group("f", purpose=Purpose.EVAL))
        ledger.submit(group("u"))
        ledger.seal()
        assert ledger.take(3, "a") == []  # u may still come
        play_groups(ledger, "u")
        taken = ledger.take(3, "a")
        assert [g.id for g in taken] == ["t", "u"]  # short: only eval groups are open
        ledger.ack("a", [member for g in taken for member in g.members])
        assert is_over(ledger)
        assert not is_over(ledger, Purpose.EVAL)
        assert [g.id for g in ledger.take(1, "b", purpose=Purpose.EVAL)] == ["e"]

    def test_a_group_that_is_not_viable_is_dropped_once_settled(self, ledger: Ledger) -> None:
        ledger.submit(group("a"))
        claim(ledger, "r/a/1")
        ledger.fail("r/a/1", 1, FailureClass.CANCELLED, "x")
        assert reader(ledger).stats()["groups_open"] == 1  # its sibling may still be looked at
        play(ledger, "r/a/0")
        stats = reader(ledger).stats()
        assert (stats["groups_open"], stats["groups_dropped"], stats["dropped"]) == (0, 1, 1)
        assert stats["done"] + stats["dead"] == stats["submitted"]
        ledger.seal()
        assert is_over(ledger)

    def test_a_job_that_a_consumer_cannot_read_is_dead(self, ledger: Ledger) -> None:
        finish_groups(ledger, "a", "b", min_viable=1)
        ledger.take(2, "t")
        ledger.reject("t", "r/a/0", "torn")
        ledger.reject("t", "r/a/0", "torn")
        with pytest.raises(NotHeld):
            ledger.reject("u", "r/b/0", "torn")
        (first, second) = ledger.take(2, "u")
        assert (first.members, first.dead) == (["r/a/1"], ["r/a/0"])
        assert second.members == ["r/b/0", "r/b/1"]
        stats = reader(ledger).stats()
        assert (stats["done"], stats["dead"], stats["redelivered"]) == (3, 1, 0)
        ledger.reject("u", "r/a/1", "torn too")
        assert reader(ledger).stats()["groups_dropped"] == 1
