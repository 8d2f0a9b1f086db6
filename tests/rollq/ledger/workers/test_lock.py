"""The lock has one holder among all processes, for as long as that holder lives."""

from typing import Any

import pytest

from rollq.ledger.keys import LOCKS
from rollq.ledger.workers import lock as lock_module
from rollq.ledger.workers.lock import RedisLock
from tests.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "POLL_S", 0.01)


class Stop(Exception):
    pass


def stop() -> None:
    raise Stop


def test_there_is_one_holder_and_the_next_one_follows(client: Any) -> None:
    first, second, other = (
        RedisLock(client, "http://a"),
        RedisLock(client, "http://a"),
        RedisLock(client, "http://b"),
    )
    with first(stop):
        with pytest.raises(Stop), second(stop):
            pytest.fail("two holders")
        with other(stop):
            pass
    with second(stop):
        pass
    assert client.keys(LOCKS + "*") == []


def test_the_holder_renews_it(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 0.02 s, for another minute: no pause of this process loses it."""
    redis_lock = client.lock

    def for_a_minute(key: str, timeout: float, **options: Any) -> Any:
        return redis_lock(key, timeout=60.0, **options)

    monkeypatch.setattr(lock_module, "LOCK_S", 0.06)
    monkeypatch.setattr(client, "lock", for_a_minute)
    lock = RedisLock(client, "x")
    with lock(stop):
        for _ in range(2):
            client.pexpire(lock._key, 30_000)
            until(lambda: client.pttl(lock._key) > 31_000)
        with pytest.raises(Stop), RedisLock(client, "x")(stop):
            pytest.fail("it was lost")


def test_a_dead_holders_lock_expires(client: Any) -> None:
    lock = RedisLock(client, "x")
    client.set(lock._key, "of the dead", px=60_000)
    checks: list[object] = []
    with lock(lambda: checks.append(client.pexpire(lock._key, 1))):
        assert checks


def test_a_lost_lock_is_not_taken_from_its_next_holder(client: Any) -> None:
    lock = RedisLock(client, "x")
    with lock(stop):
        client.set(lock._key, "another's")
    assert client.get(lock._key) == b"another's"


def test_a_redis_that_is_full_is_waited_for(client: Any) -> None:
    checks: list[object] = []
    client.config_set("maxmemory", 1)
    try:
        with RedisLock(client, "x")(lambda: checks.append(client.config_set("maxmemory", 0))):
            assert checks
    finally:
        client.config_set("maxmemory", 0)
