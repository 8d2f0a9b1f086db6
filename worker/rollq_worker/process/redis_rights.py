"""ACL permissions that each component needs in Redis, and a check for missing ones.

A worker checks its own when it starts, `rollq doctor` those of all parts. `deploy/redis/users.sh`
grants them. It changes nothing.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from rollq.ledger.keys import ACTIVE, ENGINES, REAPER, RUNS, WORKERS, Keys
from rollq.servers.rights import Command, refused

UNKNOWN_RUN = "rollq-start"
"""A run that does not exist."""
REMEDY = (
    "its user must be allowed the keys rollq* and _kombu.*, all channels, and all commands but "
    "the administrative ones; docs/deploy.md"
)
_KEYS = Keys(UNKNOWN_RUN)
_JOB = _KEYS.job(f"{UNKNOWN_RUN}/x/0")
_GROUP = _KEYS.group("x")
_HELD = f"{_KEYS.prefix}held:train"


class Part(StrEnum):
    """A part of rollq that may have a user of its own."""

    WORKER = "worker"
    PRODUCER = "producer"
    TRAINER = "trainer"


def missing(client: Any, part: Part) -> list[str]:
    """Commands that this part sends to the ledger and its user may not. Raises redis's errors."""
    return refused(client, [*_SCRIPTS, *_LEDGER[part]])


def missing_at_broker(client: Any, part: Part, queue: str) -> list[str]:
    """The same for a broker that is a Redis, and this Celery queue."""
    pool: Any = client.connection_pool
    sends: list[Command] = [
        ("LPUSH", queue, "x"),
        ("SADD", f"_kombu.binding.{queue}", "x"),
        ("SMEMBERS", f"_kombu.binding.{queue}"),
        ("PUBLISH", f"/{pool.connection_kwargs.get('db') or 0}.celeryev/worker.heartbeat", ""),
    ]
    takes: list[Command] = [("BRPOP", queue, 1), ("LLEN", queue), ("TYPE", queue)]
    commands = {Part.WORKER: sends + takes, Part.PRODUCER: sends, Part.TRAINER: []}
    return refused(client, commands[part])


_SCRIPTS: Sequence[Command] = (
    ("INFO", "memory"),
    ("SCRIPT", "LOAD", "return 1"),
    ("EVALSHA", "0" * 40, 1, _GROUP),
    ("EVAL", "return 1", 1, _GROUP),
    ("TIME",),
    # What the scripts use, of each kind of key.
    *((name, _GROUP) for name in ("EXISTS", "TYPE", "DEL", "HGETALL", "PTTL")),
    ("HGET", _GROUP, "x"),
    ("HMGET", _GROUP, "x"),
    ("HSET", _GROUP, "x", 1),
    ("HDEL", _GROUP, "x"),
    ("EXPIRE", _GROUP, 1),
    ("ZADD", _HELD, 1, "x"),
    ("ZREM", _HELD, "x"),
    ("ZSCORE", _HELD, "x"),
    ("ZRANGE", _HELD, 0, 0),
    ("HSET", _KEYS.meta, "x", 1),
    ("SADD", f"{_KEYS.prefix}hold:x", "x"),
    ("SREM", f"{_KEYS.prefix}hold:x", "x"),
    ("GET", _KEYS.acked("x")),
    ("SET", _KEYS.acked("x"), "x"),
    ("ZCARD", _KEYS.queued),
    ("ZRANGE", RUNS, 0, 0),
    ("HGETALL", WORKERS),
)
_SUBMITS: Sequence[Command] = (
    ("ZADD", _KEYS.queued, 1, "x"),
    ("HSET", _KEYS.sources, "x", 1),
    ("HSET", _JOB, "x", 1),
    ("ZADD", RUNS, 1, "x"),
    ("ZADD", ACTIVE, 1, "x"),
)
_LEDGER: Mapping[Part, Sequence[Command]] = {
    Part.WORKER: (
        *_SUBMITS,
        ("ZADD", _KEYS.leased, 1, "x"),
        ("RPUSH", _KEYS.journal(f"{UNKNOWN_RUN}/x/0"), "x"),
        ("RENAME", _KEYS.journal("x"), _KEYS.journal("x", 1)),
        ("HSET", WORKERS, "x", 1),
        ("HDEL", WORKERS, "x"),
        ("SET", REAPER, "x"),
        ("SMEMBERS", f"{ENGINES}x"),
    ),
    Part.PRODUCER: _SUBMITS,
    Part.TRAINER: (("BLPOP", f"{_KEYS.prefix}wake:x", 1), ("LPUSH", f"{_KEYS.prefix}wake:x", "x")),
}
