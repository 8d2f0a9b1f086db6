"""Checks of a Redis that holds runs: version, eviction, persistence, memory, replication.

A worker warns of it when it starts, commands warn of it when they submit, and `rollq doctor` prints
it. It only reads, and knows nothing of what is stored.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import redis

OLDEST = (6, 2)
"""The oldest Redis that rollq works with."""
SHORT = 0.8
"""Share of its memory limit from which a Redis is short of memory."""


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, or may soon, and a person should know."""
    FAIL = "fail"
    """A run would not work, or could lose what it has."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    level: Level
    says: str
    remedy: str = ""
    """The remedy; empty when there is nothing to do."""
    lines: Sequence[str] = ()
    """More lines for people."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """More fields for programs."""


def check_redis(connection: Any) -> list[str]:
    """Warnings about how Redis is configured: one that evicts keys or forgets them on restart loses
    trajectories.
    """
    bad = [finding for finding in findings(connection) if finding.level is not Level.OK]
    return sorted({f"{finding.says}: {finding.remedy}" for finding in bad})


def findings(server: Any) -> list[Finding]:
    """Checks of what the server says of itself."""
    try:
        info = server.info()
        return [
            _version(info),
            _eviction(info),
            _persistence(info),
            _memory(info),
            _replication(info),
        ]
    except (redis.ResponseError, KeyError) as e:
        says = f"Redis does not show how it is configured ({e})"
        remedy = (
            "it must run with noeviction and appendonly; +info in its user's rights "
            "lets rollq see that"
        )
        return [Finding("redis", Level.WARN, says, remedy)]


def server_info(connection: Any) -> dict[str, Any]:
    """The server's version, memory, disk and role; empty where the user may not read them."""
    try:
        info: dict[str, Any] = connection.info()
        return info
    except redis.ResponseError:
        return {}


def _version(info: Mapping[str, Any]) -> Finding:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version", info["redis_version"]))
    numbers = re.match(r"(\d+)\.(\d+)", str(info["redis_version"]))
    details = {"version": version, "server": name.lower()}
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        remedy = f"use Redis {oldest} or newer, or Valkey"
        return Finding(
            "redis version", Level.FAIL, f"Redis {version} is too old", remedy, details=details
        )
    return Finding("redis version", Level.OK, f"{name} {version}", details=details)


def _eviction(info: Mapping[str, Any]) -> Finding:
    policy = info["maxmemory_policy"]
    evicted = info.get("evicted_keys", 0)
    details = {"maxmemory_policy": policy}
    if policy != "noeviction":
        says = f"Redis evicts keys when memory is short (maxmemory-policy {policy})"
        return Finding("redis eviction", Level.FAIL, says, "set it to noeviction", details=details)
    return Finding(
        "redis eviction", Level.OK, "evicts nothing", details=details | {"evicted_keys": evicted}
    )


def _persistence(info: Mapping[str, Any]) -> Finding:
    name = "redis persistence"
    if not info["aof_enabled"]:
        says, remedy = "Redis forgets everything when it restarts", "start it with --appendonly yes"
        return Finding(name, Level.FAIL, says, remedy)
    status = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    if wrong := [name for name in status if info.get(name) == "err"]:
        says = f"Redis could not write to its disk the last time ({', '.join(wrong)}: err)"
        return Finding(name, Level.FAIL, says, "look for a full disk, and at Redis's log")
    if info.get("loading"):
        return Finding(name, Level.WARN, "Redis still reads its file", "wait until it has")
    return Finding(name, Level.OK, "has an append-only file")


def _memory(info: Mapping[str, Any]) -> Finding:
    """Memory of Redis. Without a limit of its own, it may have what the machine has."""
    used = info["used_memory"]
    own = info["maxmemory"]
    machine = info.get("total_system_memory", 0)
    limit = own or machine
    details = {"used_bytes": used, "maxmemory_bytes": own, "machine_bytes": machine}
    if not limit:
        return Finding(
            "redis memory", Level.OK, f"uses {_size(used)}, of an unknown limit", details=details
        )
    says = (
        f"uses {_size(used)} of {_size(limit)} ({used / limit:.0%}; "
        f"{'maxmemory' if own else 'all of the machine'})"
    )
    if used < SHORT * limit:
        return Finding("redis memory", Level.OK, says, details=details)
    level = Level.WARN if used < limit else Level.FAIL
    remedy = "acknowledge or drop finished groups (`rollq stats`), or give it more (maxmemory)"
    return Finding(
        "redis memory", level, f"Redis is short of memory: it {says}", remedy, details=details
    )


def _replication(info: Mapping[str, Any]) -> Finding:
    name, role, replicas = "redis replication", info["role"], info.get("connected_slaves", 0)
    details = {"role": role, "replicas": replicas}
    if role != "master":
        says, remedy = (
            "Redis is a replica, which takes no writes",
            "give the address of the primary, or of Sentinels",
        )
        return Finding(name, Level.FAIL, says, remedy, details=details)
    if info.get("min_slaves_good_slaves") == 0:
        says, remedy = (
            "Redis takes no writes without its replicas, and none follows it",
            "start its replicas again",
        )
        return Finding(name, Level.FAIL, says, remedy, details=details)
    if replicas and "min_slaves_good_slaves" not in info:
        says = (
            "Redis takes writes without its replicas, so what it takes after it "
            "was replaced is lost"
        )
        remedy = "set min-replicas-to-write 1 and min-replicas-max-lag 5"
        if replicas == 1:
            remedy += ", and add a replica: without a second one, writes wait after a failover"
        return Finding(name, Level.WARN, says, remedy, details=details)
    says = f"a primary with {replicas or 'no'} replica{'' if replicas == 1 else 's'}"
    return Finding(name, Level.OK, says, details=details)


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
