"""The ledger of the tests of rollq, and a client of its run."""

from collections.abc import Iterator

import pytest

from rollq import Client
from tests.rollq.conftest import ledger, plain_environment

__all__ = ["ledger", "plain_environment"]


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, run="r") as connected:
        yield connected
