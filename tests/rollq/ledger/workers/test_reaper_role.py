"""The role of the reaper: one worker has it, and another gets it when the first leaves or dies."""

import time

import pytest
import redis

from rollq.ledger.keys import REAPER
from rollq.ledger.workers import reaping
from rollq.ledger.workers.reaping import ROLE_S, ReaperRole


def test_one_worker_has_it_as_long_as_it_renews(client: "redis.Redis") -> None:
    first, second = ReaperRole(client, "a"), ReaperRole(client, "b")
    assert first.take() == 0.0
    assert 0.0 < second.take() <= ROLE_S
    client.pexpire(REAPER, 100)  # nearly over
    assert first.take() == 0.0
    assert second.take() > 0.1
    assert client.get(REAPER) == b"a"


def test_a_dead_one_is_replaced(client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "ROLE_S", 0.2)
    first, second = ReaperRole(client, "a"), ReaperRole(client, "b")
    first.take()
    while left := second.take():  # ends, because the role does
        assert left <= 0.2
        time.sleep(left)
    assert client.get(REAPER) == b"b"


def test_one_that_leaves_hands_over_what_it_has(client: "redis.Redis") -> None:
    first, second = ReaperRole(client, "a"), ReaperRole(client, "b")
    first.take()
    second.hand_over()  # which has nothing to hand over
    assert client.get(REAPER) == b"a"
    first.hand_over()
    assert client.get(REAPER) is None and second.take() == 0.0


def test_it_needs_no_memory(client: "redis.Redis") -> None:
    """What a reaper brings back makes room."""
    client.config_set("maxmemory", 1)
    try:
        assert ReaperRole(client, "a").take() == 0.0
    finally:
        client.config_set("maxmemory", 0)
    assert client.get(REAPER) == b"a"


def test_a_role_without_an_end_is_taken_over(client: "redis.Redis") -> None:
    client.set(REAPER, "restored from somewhere")
    assert ReaperRole(client, "a").take() == 0.0
    assert client.pttl(REAPER) > 0


def test_a_role_is_taken_over_when_the_clock_was_set_back(client: "redis.Redis") -> None:
    """Its end is an hour away then, and its holder may be dead."""
    assert ReaperRole(client, "dead").take() == 0.0
    client.pexpire(REAPER, 3_600_000)
    assert ReaperRole(client, "alive").take() == 0.0
    assert client.get(REAPER) == b"alive"
