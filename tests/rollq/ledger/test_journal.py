"""How attempts write the journal, on a real Redis: fences, indexes, attempts that go on with it, and its end."""

from dataclasses import replace

import pytest

from rollq.errors import ContractError, FailureClass, Fenced, JournalConflict
from rollq.events import Stop
from rollq.ledger.ledger import Ledger
from rollq.trajectory import Header
from rollq.wire.codec import encode_header
from rollq.wire.events import decode_event, encode_event
from tests.rollq.samples import claim, closed, events, group, journal, prompt, reader


class TestJournal:
    def test_only_the_lease_may_write(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        end = encode_event(closed(), "r/g/0")
        for write in (
            lambda: ledger.append("r/g/0", "2#token", 0, [b"x"]),
            lambda: ledger.complete("r/g/0", "2#token", 0, [end]),
            lambda: ledger.fail("r/g/0", "2#token", FailureClass.ENV, "x"),
            lambda: ledger.release("r/g/0", "2#token"),
            lambda: ledger.append("r/g/1", "1#token", 0, [b"x"]),
            lambda: ledger.append("r/unknown/1", "1#token", 0, [b"x"]),
        ):
            with pytest.raises(Fenced, match="r/"):
                write()
        assert reader(ledger).stats()["fenced"] == 6
        assert ledger.journal("r/g/0") == []

    def test_an_index_tells_a_repeat_from_a_conflict(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        blobs = [encode_header(Header(attempt=1)), *(encode_event(event, "r/g/0") for event in events()[:3])]
        for _ in range(2):
            for index in range(4):
                ledger.append("r/g/0", "1#token", index, [blobs[index]])
        for index, blob in ((5, blobs[3]), (1, blobs[2])):
            with pytest.raises(JournalConflict) as caught:
                ledger.append("r/g/0", "1#token", index, [blob])
            assert caught.value.length == 4
        assert ledger.journal("r/g/0") == blobs

    def test_several_entries_travel_together(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        blobs = [encode_header(Header(attempt=1)), *(encode_event(event, "r/g/0") for event in events()[:5])]
        ledger.append("r/g/0", "1#token", 0, blobs[:2])
        for _ in range(2):
            ledger.append("r/g/0", "1#token", 2, blobs[2:4])
        ledger.append("r/g/0", "1#token", 3, blobs[3:])  # the first of them is there
        with pytest.raises(JournalConflict):
            ledger.append("r/g/0", "1#token", 4, [blobs[2], blobs[5]])
        assert ledger.journal("r/g/0") == blobs
        assert ledger.redis.hget(ledger.keys.job("r/g/0"), "turned") == b"2"

    def test_a_group_stores_its_prompt_once(self, ledger: Ledger) -> None:
        ledger.submit(group())
        for sample, at in enumerate((1.0, 2.0)):
            journal(ledger, f"r/g/{sample}", claim(ledger, f"r/g/{sample}").lease, [replace(prompt(), at=at)])
        assert ledger.redis.hlen(ledger.keys.prompts("g")) == 1
        for sample, at in enumerate((1.0, 2.0)):
            assert decode_event(ledger.journal(f"r/g/{sample}")[1], "r/g/0") == replace(prompt(), at=at)

    def test_two_workers_may_hold_an_attempt_but_not_a_lease(self, ledger: Ledger) -> None:
        """Redis came back without the first one's claim."""
        ledger.submit(group())
        claim(ledger, "r/g/0", "b")
        with pytest.raises(Fenced):
            ledger.append("r/g/0", "1#a", 0, [b"header"])
        assert ledger.renew_leases([("r/g/0", "1#a"), ("r/g/0", "1#b")]) == [("r/g/0", "1#a")]

    def test_a_new_attempt_goes_on_with_the_journal(self, ledger: Ledger) -> None:
        ledger.submit(group())
        assert claim(ledger, "r/g/0", "a").journal == 0
        journal(ledger, "r/g/0", "1#a", events()[:3])
        written = ledger.journal("r/g/0")
        ledger.release("r/g/0", "1#a")
        again = claim(ledger, "r/g/0", "b")
        assert (again.attempt, again.set_aside, again.journal) == (2, False, len(written))
        assert claim(ledger, "r/g/0", "b") == again
        assert ledger.journal("r/g/0") == written
        assert reader(ledger).stats()["resumed"] == 0  # its replay has not ended
        for _ in range(2):
            ledger.append("r/g/0", "2#b", len(written), [encode_event(events()[3], "r/g/0")])
        ledger.append("r/g/0", "2#b", len(written) + 1, [encode_event(events()[4], "r/g/0")])
        assert (reader(ledger).stats()["resumed"], reader(ledger).stats()["turns_saved"]) == (1, 1)

    def test_an_attempt_that_only_closes_what_it_found_has_resumed_it(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0", "a")
        index = journal(ledger, "r/g/0", "1#a", events()[:5])
        ledger.release("r/g/0", "1#a")
        claim(ledger, "r/g/0", "b")
        for _ in range(2):
            ledger.complete("r/g/0", "2#b", index, [encode_event(closed(), "r/g/0")])
        assert (reader(ledger).stats()["resumed"], reader(ledger).stats()["turns_saved"]) == (1, 2)

    def test_a_journal_that_is_set_aside_was_not_resumed(self, ledger: Ledger) -> None:
        """Its replay diverged, as often as it was tried."""
        ledger.submit(group())
        claim(ledger, "r/g/0", "a")
        journal(ledger, "r/g/0", "1#a", events()[:3])
        ledger.release("r/g/0", "1#a")
        claim(ledger, "r/g/0", "b")
        ledger.fail("r/g/0", "2#b", FailureClass.ENV, "diverged")
        assert claim(ledger, "r/g/0", "c").set_aside
        journal(ledger, "r/g/0", "3#c", events()[:5])
        ledger.complete("r/g/0", "3#c", 6, [encode_event(closed(), "r/g/0")])
        assert (reader(ledger).stats()["resumed"], reader(ledger).stats()["turns_saved"]) == (0, 0)

    def test_renewal_tells_what_is_lost(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        members = [("r/g/0", "1#token"), ("r/g/0", "2#token"), ("r/g/1", "1#token")]
        assert ledger.renew_leases(members) == members[1:]
        assert ledger.renew_leases([]) == []


class TestComplete:
    def test_only_a_graded_end_completes(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        for event in (prompt(), replace(closed(), stop=Stop.FAILED, reward=None)):
            with pytest.raises(ContractError, match="r/g/0"):
                ledger.complete("r/g/0", "1#token", 0, [encode_event(event, "r/g/0")])
        with pytest.raises(JournalConflict):
            ledger.complete("r/g/0", "1#token", 3, [encode_event(closed(), "r/g/0")])
        assert reader(ledger).stats()["leased"] == 1
