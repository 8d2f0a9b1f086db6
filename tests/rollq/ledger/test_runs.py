"""What the ledger says and does of a whole run, on a real Redis."""

import pytest

from rollq.errors import (
    LedgerError,
    SettingsError,
)
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim, Refusal
from rollq.wire.blob import SCHEMA
from tests.rollq.samples import claim, group, journal, prompt, reader, reap


class TestRun:
    def test_the_first_claim_fixes_the_tokenizer(self, ledger: Ledger) -> None:
        ledger.submit(group())
        refused = ledger.claim(
            "r/g/0", worker="w", token="t", tokenizer_hash="tok", template_hash="tmpl"
        )
        assert isinstance(refused, Claim)
        for hashes in (("other", "tmpl"), ("tok", "other")):
            refused = ledger.claim(
                "r/g/1",
                worker="v",
                token="u",
                **dict(zip(("tokenizer_hash", "template_hash"), hashes, strict=True)),
            )
            assert isinstance(refused, Refusal)
            assert (refused.reason, reader(ledger).stats()["claims"]) == ("tokenizer", 1)
            assert "--queues" in refused.detail
        assert reap(ledger) == ["r/g/1"]  # others get it at once

    def test_a_producer_may_pin_the_tokenizer(self, ledger: Ledger) -> None:
        for _ in range(2):
            ledger.pin_tokenizer("tok", "tmpl")
        with pytest.raises(SettingsError, match="template"):
            ledger.pin_tokenizer("tok", "other")
        ledger.submit(group())
        refused = ledger.claim(
            "r/g/0", worker="w", token="t", tokenizer_hash="other", template_hash="tmpl"
        )
        assert isinstance(refused, Refusal)
        assert refused.reason == "tokenizer"

    def test_another_schema_is_left_alone(self, ledger: Ledger) -> None:
        ledger.submit(group())
        body = ledger.redis.hget(ledger.keys.group("g"), "body")
        ledger.redis.hset(ledger.keys.group("g"), "body", bytes([body[0], SCHEMA + 1]) + body[2:])
        refused = ledger.claim("r/g/0", worker="w", token="t")
        assert isinstance(refused, Refusal)
        assert refused.reason == "schema" and "use the rollq that wrote it" in refused.detail
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["leased"], stats["failures"]) == (2, 0, {})

    def test_an_unplayed_and_a_half_played_job_can_be_shown(self, ledger: Ledger) -> None:
        ledger.submit(group())
        assert reader(ledger).trajectory("r/g/0").events == []
        claim(ledger, "r/g/0")
        journal(ledger, "r/g/0", "1#token", [prompt()])
        found = reader(ledger).trajectory("r/g/0")
        assert list(found.events) == [prompt()]
        assert (found.stop, found.header.attempt) == (None, 1)
        state = reader(ledger).job("r/g/0")
        assert state.lease_until is not None
        assert reader(ledger).job("r/nobody/0") is None
        with pytest.raises(LedgerError, match="unknown"):
            reader(ledger).trajectory("r/nobody/0")
