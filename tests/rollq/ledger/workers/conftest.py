"""A client of the real Redis."""

from collections.abc import Iterator

import pytest
import redis

from rollq.servers.connection import connect


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    found = connect(redis_url)
    yield found
    found.close()
