"""How attempts write the journal, on a real Redis: fences, indexes, attempts that go on with it,
and its end.
"""

from dataclasses import replace

import pytest

from rollq.errors import ContractError, JournalConflict
from rollq.events import Stop
from rollq.ledger.ledger import Ledger
from rollq.wire.events import decode_event, encode_event
from tests.rollq.samples import claim, closed, group, journal, prompt, reader


class TestJournal:
    def test_a_group_stores_its_prompt_once(self, ledger: Ledger) -> None:
        ledger.submit(group())
        for sample, at in enumerate((1.0, 2.0)):
            journal(
                ledger,
                f"r/g/{sample}",
                claim(ledger, f"r/g/{sample}").lease,
                [replace(prompt(), at=at)],
            )
        assert ledger.redis.hlen(ledger.keys.prompts("g")) == 1
        for sample, at in enumerate((1.0, 2.0)):
            assert decode_event(ledger.journal(f"r/g/{sample}")[1], "r/g/0") == replace(
                prompt(), at=at
            )


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
