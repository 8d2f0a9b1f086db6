"""Fixtures of the tests on real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.hanging_server import HangingServer
from tests.e2e.own_redis import OwnRedis
from tests.e2e.stack import Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/e2e/"):
            item.add_marker(pytest.mark.timeout(900))
            if not item.get_closest_marker("promise"):
                item.add_marker(pytest.mark.slow)


@pytest.fixture
def stack(tmp_path: Path, redis_url: str) -> Iterator[Stack]:
    stack = Stack(tmp_path, redis_url)
    yield stack
    stack.close()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path)
    yield server
    server.process.kill()
    server.process.wait(60)


@pytest.fixture
def own_stack(tmp_path: Path, own_redis: OwnRedis) -> Iterator[Stack]:
    """A stack on a Redis of its own."""
    stack = Stack(tmp_path, own_redis.url)
    yield stack
    stack.close()


@pytest.fixture
def hanging_server() -> Iterator[HangingServer]:
    server = HangingServer()
    yield server
    server.close()
