"""How attempts write the journal, on a real Redis: fences, indexes, attempts that go on with it, and its end."""

from dataclasses import replace

import pytest

from rollq.errors import ContractError, FailureClass, Fenced, JournalConflict
from rollq.ledger.ledger import Ledger
from rollq.trajectory import Stop
from rollq.wire.codec import encode_event
from tests.rollq.samples import claim, closed, events, group, journal, prompt, reader


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
        assert reader(ledger).stats()["fenced"] == 6
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
        assert reader(ledger).stats()["resumed"] == 0  # its replay has not ended
        for _ in range(2):
            ledger.append("r/g/0", 2, len(written), encode_event(events()[3], "r/g/0"))
        ledger.append("r/g/0", 2, len(written) + 1, encode_event(events()[4], "r/g/0"))
        assert (reader(ledger).stats()["resumed"], reader(ledger).stats()["turns_saved"]) == (1, 1)

    def test_an_attempt_that_only_closes_what_it_found_has_resumed_it(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0", "a")
        index = journal(ledger, "r/g/0", 1, events()[:5])
        ledger.release("r/g/0", 1)
        claim(ledger, "r/g/0", "b")
        for _ in range(2):
            ledger.complete("r/g/0", 2, index, encode_event(closed(), "r/g/0"))
        assert (reader(ledger).stats()["resumed"], reader(ledger).stats()["turns_saved"]) == (1, 2)

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
        assert (reader(ledger).stats()["resumed"], reader(ledger).stats()["turns_saved"]) == (0, 0)

    def test_renewal_tells_what_is_lost(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        members = [("r/g/0", 1), ("r/g/0", 2), ("r/g/1", 1)]
        assert ledger.renew_leases(members) == members[1:]
        assert ledger.renew_leases([]) == []


class TestComplete:
    def test_only_a_graded_end_completes(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        for event in (prompt(), replace(closed(), stop=Stop.FAILED, reward=None)):
            with pytest.raises(ContractError, match="r/g/0"):
                ledger.complete("r/g/0", 1, 0, encode_event(event, "r/g/0"))
        with pytest.raises(JournalConflict):
            ledger.complete("r/g/0", 1, 3, encode_event(closed(), "r/g/0"))
        assert reader(ledger).stats()["leased"] == 1
