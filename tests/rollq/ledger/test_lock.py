"""One at a time among processes, as long as the holder lives."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rollq.ledger import lock as turn_module
from rollq.ledger.connection import connect
from rollq.ledger.keys import TURN
from rollq.ledger.lock import Turn


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    client = connect(redis_url)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_module, "POLL_S", 0.01)


class Stop(Exception):
    pass


def stop() -> None:
    raise Stop


def test_there_is_one_holder_and_the_next_one_follows(client: "redis.Redis") -> None:
    first, second, other = Turn(client, "http://a"), Turn(client, "http://a"), Turn(client, "http://b")
    with first(stop):
        with pytest.raises(Stop), second(stop):
            pytest.fail("two at a time")
        with other(stop):
            pass
    with second(stop):
        pass
    assert client.keys(TURN + "*") == []


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def test_it_is_kept_for_as_long_as_it_takes(client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept every 0.02 s for another minute: no pause of this process loses it."""
    lock = client.lock

    def for_a_minute(key: str, timeout: float, **options: Any) -> Any:
        return lock(key, timeout=60.0, **options)

    monkeypatch.setattr(turn_module, "TURN_S", 0.06)
    monkeypatch.setattr(client, "lock", for_a_minute)
    turn = Turn(client, "x")
    with turn(stop):
        for _ in range(2):
            client.pexpire(turn._key, 30_000)
            until(lambda: client.pttl(turn._key) > 31_000)
        with pytest.raises(Stop), Turn(client, "x")(stop):
            pytest.fail("it was lost")


def test_a_holder_that_died_lets_go(client: "redis.Redis") -> None:
    turn = Turn(client, "x")
    client.set(turn._key, "of the dead", px=60_000)
    checks: list[object] = []
    with turn(lambda: checks.append(client.pexpire(turn._key, 1))):
        assert checks


def test_one_that_was_lost_meanwhile_is_not_taken_from_the_next(client: "redis.Redis") -> None:
    turn = Turn(client, "x")
    with turn(stop):
        client.set(turn._key, "another's")
    assert client.get(turn._key) == b"another's"


def test_redis_may_be_full_for_a_while(client: "redis.Redis") -> None:
    checks: list[object] = []
    client.config_set("maxmemory", 1)
    try:
        with Turn(client, "x")(lambda: checks.append(client.config_set("maxmemory", 0))):
            assert checks
    finally:
        client.config_set("maxmemory", 0)
