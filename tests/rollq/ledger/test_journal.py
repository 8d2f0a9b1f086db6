"""How attempts write the journal, on a real Redis: fences, indexes, attempts that go on with it, and its end."""

from dataclasses import replace

import pytest

from rollq.errors import ContractError, JournalConflict
from rollq.events import Stop
from rollq.ledger.ledger import Ledger
from rollq.wire.events import decode_event, encode_event
from tests.rollq.samples import claim, closed, events, group, journal, prompt, reader


class TestJournal:
    def test_a_group_stores_its_prompt_once(self, ledger: Ledger) -> None:
        ledger.submit(group())
        for sample, at in enumerate((1.0, 2.0)):
            journal(ledger, f"r/g/{sample}", claim(ledger, f"r/g/{sample}").lease, [replace(prompt(), at=at)])
        assert ledger.redis.hlen(ledger.keys.prompts("g")) == 1
        for sample, at in enumerate((1.0, 2.0)):
            assert decode_event(ledger.journal(f"r/g/{sample}")[1], "r/g/0") == replace(prompt(), at=at)

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
