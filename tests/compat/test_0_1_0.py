"""What rollq 0.1.0 left in Redis and in exported files is read, resumed, handed out and
acknowledged by this one.

Where a test fails, a release would lose what users have. Change the code so that it reads both, or
give the wire another schema: then 0.1.0's runs are refused by name.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest
import redis

from rollq.batch import Batch
from rollq.client.client import Client
from rollq.errors import LedgerError
from rollq.events import Event
from rollq.export import jsonl, parquet
from rollq.export.formats import check
from rollq.export.record import record
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import State
from rollq.trajectory import Header
from rollq.wire.blob import SCHEMA
from rollq.wire.codec import encode_header
from rollq.wire.events import encode_event
from tests.compat.make import EXPORTED, FINISHED, FOLDER, HALF, agent_jobs
from tests.rollq.samples import claim, events, group, reap

DATA = FOLDER / "0.1.0"
LINES = {
    line["job"]: line for line in map(json.loads, (DATA / "export.jsonl").read_text().splitlines())
}
in_redis = pytest.mark.skipif(
    SCHEMA != 2, reason="0.1.0 wrote schema 2, which this rollq refuses by name"
)


@pytest.fixture
def restored(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        write: dict[str, Callable[[bytes, Any], object]] = {
            "string": client.set,
            "hash": lambda key, fields: client.hset(key, mapping=fields),
            "list": lambda key, entries: client.rpush(key, *entries),
            "set": lambda key, members: client.sadd(key, *members),
            "zset": client.zadd,
        }
        for key, (kind, value) in msgpack.unpackb((DATA / "redis.msgpack").read_bytes()).items():
            write[kind](key, value)
    return redis_url


def names(batch: Batch | None) -> list[str]:
    return [group.id for group in batch.groups] if batch else []


def agrees(old: Any, new: dict[str, Any]) -> None:
    """Later versions may add fields."""
    assert {name: new.get(name) for name in old} == old


@in_redis
def test_the_finished_run_is_pulled_and_acknowledged(restored: str) -> None:
    with Client(restored, run=FINISHED) as client, client.consumer(extras=["scores"]) as consumer:
        batch = consumer.next(2, timeout=10)
        assert sorted(names(batch)) == ["agent", "chat"]
        found = {
            trajectory.job.id: trajectory
            for group in batch.groups
            for trajectory in group.trajectories
        }
        assert sorted(found) == sorted(EXPORTED)
        for job_id, trajectory in found.items():
            agrees(LINES[job_id], json.loads(json.dumps(record(trajectory))))
        assert found[EXPORTED[0]].extras["scores"].data == bytes(range(22))
        consumer.ack(0)
        assert consumer.next(2, timeout=10) is None
        stats = client.stats()
    assert (stats["done"], stats["delivered"], stats["dead"]) == (4, 4, 0)


@in_redis
def test_the_half_played_run_goes_on(restored: str) -> None:
    with Client(restored, run=HALF) as client, redis.Redis.from_url(restored) as server:
        ledger = Ledger(server, HALF)
        published = client.published()
        assert published and (published.step, published.weight_version) == (1, "1")
        with pytest.raises(LedgerError):  # a later batch was acknowledged
            client.consumer(name="trainer", step=0)
        with client.consumer(name="trainer", order="submitted") as consumer:
            batch = consumer.next(1, timeout=10)
            assert batch and (batch.step, names(batch)) == (2, ["held"])
            assert client.job(f"{HALF}/playing/0").state == State.LEASED
            reap(ledger)
            resume(ledger, f"{HALF}/playing/0", events()[3:])
            resume(ledger, f"{HALF}/playing/1", events())
            client.seal()
            batch = consumer.next(1, timeout=10)
            assert batch and (batch.step, names(batch)) == (3, ["playing"])
            played = {
                trajectory.job.sample: trajectory for trajectory in batch.groups[0].trajectories
            }
            assert played[0].tokens.tolist() == [*range(3000), 7, 8, 4, 5, 7, 8, 4, 5]
            assert played[0].messages[0]["content"] == "Hello " * 500
            consumer.ack(3)
            assert consumer.next(1, timeout=10) is None


def resume(ledger: Ledger, job_id: str, some: Sequence[Event]) -> None:
    """Plays what its journal has not."""
    claimed = claim(ledger, job_id, "later")
    header = [] if claimed.journal else [encode_header(Header(attempt=claimed.attempt))]
    blobs = header + [encode_event(event, job_id) for event in some]
    ledger.complete(job_id, claimed.lease, claimed.journal, blobs)


@in_redis
def test_a_producer_that_starts_again_submits_nothing_twice(restored: str) -> None:
    with Client(restored, run=FINISHED) as client:
        assert client.submit(agent_jobs()).known == [
            f"{FINISHED}/agent/{sample}" for sample in range(3)
        ]
    with Client(restored, run=HALF) as client:
        assert client.submit(group("trained", run=HALF)).acked == [
            f"{HALF}/trained/{sample}" for sample in range(2)
        ]


@pytest.mark.parametrize(
    ("kind", "name", "left_out"),
    [(jsonl, "export.jsonl", ""), (parquet, "export.parquet", "pieces times")],
)
def test_exported_files(kind: Any, name: str, left_out: str) -> None:
    checked = list(check(DATA / name))
    assert [one.job for one in checked] == EXPORTED and not any(one.faults for one in checked)
    for head in kind.heads(DATA / name, None):
        old = LINES[head.fields["job"]]
        agrees(
            {field: old[field] for field in old if field not in left_out.split()},
            kind.read_at(DATA / name, head.where),
        )
