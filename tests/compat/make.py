"""Writes tests/compat/VERSION: what this rollq leaves in Redis and in exported files, for the
versions after it.

Before a release: `python -m tests.compat.make REDIS_URL`, with a Redis whose data may be deleted.
`redis.msgpack` has each key with its type and value, because the payloads of DUMP depend on the
server's version.
"""

import sys
from dataclasses import replace
from pathlib import Path

import msgpack
import redis

import rollq
from rollq import Budget, Client, Job
from rollq.export.formats import open_output
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq.trajectory_extras import Extra
from rollq.wire.events import encode_event
from tests.rollq.agent_episodes import branching
from tests.rollq.samples import claim, events, group, journal, play, prompt

FOLDER = Path(__file__).parent
FINISHED, HALF = "finished", "half"
EXPORTED = [f"{FINISHED}/{name}/{sample}" for name in ("chat", "agent") for sample in range(2)]


def agent_jobs() -> list[Job]:
    return group("agent", run=FINISHED, agent="program", reward="module:function", spare=1)


def finish(client: redis.Redis) -> None:
    """A sealed run that nobody has pulled: every kind of event, many fields of a job, and an array
    beside a journal.
    """
    ledger = Ledger(client, FINISHED)
    full = {
        "env_args": {"b": [None, {"c": "ü"}]},
        "sampling": {"temperature": 0.7},
        "labels": {"uid": "a"},
    }
    ledger.submit(
        group("chat", run=FINISHED, budget=Budget(max_turns=3, deadline_s=900), seed=5, **full)
    )
    ledger.submit(agent_jobs())
    ledger.seal()
    play(
        ledger, EXPORTED[0], 1.0, scores=Extra(dtype="uint16", shape=(11, 1), data=bytes(range(22)))
    )
    play(ledger, EXPORTED[1], -0.5, "2")
    for job_id in EXPORTED[2:]:
        *some, end = branching().events
        lease = claim(ledger, job_id).lease
        index = journal(ledger, job_id, lease, some)
        ledger.complete(
            job_id,
            lease,
            index,
            [encode_event(end, job_id)],
            turns=5,
            sampled_tokens=6,
            total_tokens=21,
        )


def play_half(client: redis.Redis, url: str) -> None:
    """Two batches that were acknowledged, one that is held, an episode in its second turn, and one
    that is queued.
    """
    ledger = Ledger(client, HALF)
    for name in ("trained", "also", "held", "playing"):
        ledger.submit(group(name, run=HALF))
    for job_id in [
        f"{HALF}/{name}/{sample}" for name in ("trained", "also", "held") for sample in range(2)
    ]:
        play(ledger, job_id)
    with Client(url, run=HALF) as trainer:
        trainer.publish(1, "1")
        consumer = trainer.consumer(name="trainer", order="submitted")
        for step in range(2):
            consumer.next(1, timeout=10)
            consumer.ack(step)
        consumer.next(1, timeout=10)
    # Ids and texts that are long enough to be compressed
    long = replace(prompt(*range(3000)), messages=[{"role": "user", "content": "Hello " * 500}])
    journal(
        ledger,
        f"{HALF}/playing/0",
        claim(ledger, f"{HALF}/playing/0").lease,
        [long, *events()[1:3]],
    )


def value(client: redis.Redis, key: bytes) -> tuple[str, object]:
    kind = client.type(key).decode()
    match kind:
        case "string":
            return kind, client.get(key)
        case "hash":
            return kind, client.hgetall(key)
        case "list":
            return kind, client.lrange(key, 0, -1)
        case "set":
            return kind, sorted(client.smembers(key))
        case "zset":
            return kind, dict(client.zrange(key, 0, -1, withscores=True))
    raise ValueError(kind)


def make(url: str) -> None:
    folder = FOLDER / rollq.__version__
    folder.mkdir()
    client = connect(url)
    client.flushall()
    finish(client)
    play_half(client, url)
    found = {key: value(client, key) for key in sorted(client.keys())}
    (folder / "redis.msgpack").write_bytes(msgpack.packb(found))
    with Client(url, run=FINISHED) as reader:
        trajectories = [reader.trajectory(job_id) for job_id in EXPORTED]
    for name in ("export.jsonl", "export.parquet"):
        with open_output(folder / name, append=False) as output:
            output.save(trajectories)


if __name__ == "__main__":
    make(sys.argv[1])
