"""A ledger of run `r` on the real Redis."""

from collections.abc import Iterator

import pytest

from rollq.ledger.connection import connect
from rollq.ledger.ledger import Ledger


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    client = connect(redis_url)
    yield Ledger(client, "r")
    client.close()
