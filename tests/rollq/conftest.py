"""A client and a ledger of run `r` on the real Redis, and none of the machine's settings."""

import os
from collections.abc import Iterator

import pytest

from rollq.client.client import Client
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in os.environ if name.startswith("ROLLQ_") and name != "ROLLQ_SHARED"
    ]:
        monkeypatch.delenv(name)


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, run="r") as connected:
        yield connected


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    client = connect(redis_url)
    yield Ledger(client, "r")
    client.close()
