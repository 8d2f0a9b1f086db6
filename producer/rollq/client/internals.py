"""A run in Redis: its ledger, and what reads and repairs it. For rollq's own rooms."""

from typing import Any, NamedTuple, Self

from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.versions import Versions


class Internals(NamedTuple):
    """All on one connection."""

    ledger: Ledger
    reader: LedgerReader
    versions: Versions
    dead_letters: DeadLetters

    @classmethod
    def of(cls, redis: Any, run: str) -> Self:
        ledger = Ledger(redis, run)
        return cls(ledger, LedgerReader(redis, run), Versions(redis, run), DeadLetters(redis, run))
