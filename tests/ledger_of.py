"""What a test does to the run of a client, on the client's own connection."""

from rollq import Client
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader


def ledger_of(client: Client) -> Ledger:
    return client._ledger


def reader_of(client: Client) -> LedgerReader:
    return LedgerReader(ledger_of(client).redis, client.run)


def dead_letters_of(client: Client) -> DeadLetters:
    return DeadLetters(ledger_of(client).redis, client.run)
