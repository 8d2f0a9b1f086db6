"""What a client is made of: the ledger of its run, and what reads and repairs it. For rollq's own rooms."""

from typing import NamedTuple, Self

from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.versions import Versions
from rollq.servers.connection import connect
from rollq.servers.durability import Durability


class Internals(NamedTuple):
    """All on one connection."""

    ledger: Ledger
    reader: LedgerReader
    versions: Versions
    dead_letters: DeadLetters

    @classmethod
    def of(cls, url: str, run: str, durability: Durability) -> Self:
        """Connects when first used, to a cluster now."""
        redis = connect(url)
        ledger = Ledger(redis, run, durability)
        return cls(ledger, LedgerReader(redis, run), Versions(redis, run), DeadLetters(redis, run))
