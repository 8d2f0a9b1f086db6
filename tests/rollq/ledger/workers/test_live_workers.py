"""The live workers: who is there, for how long, and what they say of themselves."""

from dataclasses import replace

import msgpack
import pytest
import redis

from rollq.ledger.keys import WORKERS
from rollq.ledger.workers.live_workers import (
    LIVE_S,
    LOST_S,
    LiveWorker,
    live_workers,
    queues_of,
    register,
    unregister,
)
from rollq.wire.blob import unpack_each

WORKER = LiveWorker(
    name="rollq@host-1",
    queues=("rollq", "b"),
    tokenizer="t1",
    template="c1",
    engine="ready",
    slots=64,
    busy=3,
)


def aged(client: "redis.Redis", name: str, by_s: int) -> None:
    """As if the worker had registered that many seconds earlier."""
    at, entry = unpack_each(client.hget(WORKERS, name))  # type: ignore[arg-type]
    client.hset(WORKERS, name, msgpack.packb(at - by_s) + msgpack.packb(entry))


def test_a_worker_is_live_from_its_registration_to_its_end(client: "redis.Redis") -> None:
    assert live_workers(client) == []
    other = replace(WORKER, name="rollq@host-2", queues=(), engine="away", busy=0)
    register(client, other)
    register(client, WORKER)
    assert live_workers(client) == [WORKER, other]
    register(client, replace(WORKER, busy=4))
    assert live_workers(client)[0].busy == 4
    unregister(client, WORKER.name)
    unregister(client, WORKER.name)
    assert live_workers(client) == [other]


@pytest.mark.parametrize(
    ("by_s", "live", "known"),
    [
        (LIVE_S - 5, True, True),
        (LIVE_S + 2, False, True),
        (LOST_S + 2, False, False),
        (-60, False, False),
    ],
)
def test_one_that_is_silent_is_dead_and_then_forgotten(
    client: "redis.Redis", by_s: int, live: bool, known: bool
) -> None:
    """An entry from the future was written before Redis's clock was set back; a live worker writes
    it again.
    """
    register(client, WORKER)
    register(client, replace(WORKER, name="other"))
    aged(client, WORKER.name, by_s)
    assert [worker.name for worker in live_workers(client)] == ["other"] + [WORKER.name] * live
    assert client.hlen(WORKERS) == 1 + known


@pytest.mark.parametrize(
    "entry",
    [
        "{}",
        '{"queues": ["a"]}',
        '{"queues": 5, "slots": "x"}',
        "not JSON",
        pytest.param("[" * 100_000, id="deep"),
        '{"queues": []} {',
        b"\xff",
        5,
        {},
    ],
)
def test_an_entry_of_another_program_hides_no_worker(client: "redis.Redis", entry: object) -> None:
    register(client, WORKER)
    now = client.time()[0]  # type: ignore[index]
    client.hset(WORKERS, "strange", msgpack.packb(now) + msgpack.packb(entry))
    client.hset(WORKERS, "a time alone", msgpack.packb(now))
    client.hset(WORKERS, b"\xff", "strange")
    assert live_workers(client) == [WORKER]


def test_registrations_need_no_memory(client: "redis.Redis") -> None:
    """Without them a Redis that is full would publish nothing, also what makes room."""
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            client.hset(WORKERS, "x", "y")
        register(client, WORKER)
        assert live_workers(client) == [WORKER]
    finally:
        client.config_set("maxmemory", 0)


def test_what_a_worker_plays() -> None:
    assert WORKER.plays("", "") and WORKER.plays("t1", "c1")
    assert not WORKER.plays("t2", "c1") and not WORKER.plays("t1", "c2")
    assert queues_of([WORKER, replace(WORKER, queues=("c",))]) == {"rollq", "b", "c"}
