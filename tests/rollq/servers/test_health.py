"""What a Redis says of itself, judged: on real servers, and on what servers may say that do not run
here.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.servers.connection import connect
from rollq.servers.health import Level, check_redis, findings, server_info
from tests.servers import Server

GOOD: dict[str, Any] = {
    "redis_version": "7.2.4",
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok",
    "loading": 0,
    "used_memory": 1_000_000,
    "maxmemory": 0,
    "total_system_memory": 1_000_000_000,
    "role": "master",
    "connected_slaves": 0,
}


class Says:
    """A server that says this of itself."""

    def __init__(self, **changes: Any) -> None:
        self.said = {**GOOD, **changes}

    def info(self) -> dict[str, Any]:
        return self.said


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("health"))
    yield found
    found.kill()


def test_a_good_server(server: Server) -> None:
    with connect(server.url) as client:
        assert check_redis(client) == []
        found = findings(client)
        assert {finding.level for finding in found} == {Level.OK}, found
        names = ["version", "eviction", "persistence", "memory", "replication"]
        assert [finding.name for finding in found] == [f"redis {name}" for name in names]
        info = server_info(client)
        assert info.get("valkey_version", info["redis_version"]) in found[0].says


@pytest.mark.parametrize(
    ("says", "name", "level", "words"),
    [
        ({"redis_version": "6.0.16"}, "version", Level.FAIL, "Redis 6.0.16 is too old"),
        ({"redis_version": "6.0.16"}, "version", Level.FAIL, "use Redis 6.2 or newer"),
        ({"redis_version": "unstable"}, "version", Level.OK, "Redis unstable"),
        ({"server_name": "valkey", "valkey_version": "8.1.0"}, "version", Level.OK, "Valkey 8.1.0"),
        (
            {"maxmemory_policy": "volatile-lru"},
            "eviction",
            Level.FAIL,
            "(maxmemory-policy volatile-lru)",
        ),
        ({"aof_enabled": 0}, "persistence", Level.FAIL, "--appendonly yes"),
        ({"aof_last_write_status": "err"}, "persistence", Level.FAIL, "a full disk"),
        ({"loading": 1}, "persistence", Level.WARN, "wait until it has"),
        ({"maxmemory": 1_100_000}, "memory", Level.WARN, "1 MB of 1 MB (91%; maxmemory)"),
        ({"maxmemory": 900_000}, "memory", Level.FAIL, "acknowledge or drop finished groups"),
        ({"total_system_memory": 1_200_000}, "memory", Level.WARN, "all of the machine"),
        ({"total_system_memory": 0}, "memory", Level.OK, "of an unknown limit"),
        ({"role": "slave"}, "replication", Level.FAIL, "the address of the primary"),
        ({"connected_slaves": 1}, "replication", Level.WARN, "min-replicas-to-write 1"),
        ({"connected_slaves": 1}, "replication", Level.WARN, "and add a replica"),
        ({"connected_slaves": 2}, "replication", Level.WARN, "max-lag 5"),
        (
            {"connected_slaves": 1, "min_slaves_good_slaves": 1},
            "replication",
            Level.OK,
            "with 1 replica",
        ),
        ({"min_slaves_good_slaves": 0}, "replication", Level.FAIL, "start its replicas again"),
    ],
)
def test_what_a_server_says(says: dict[str, Any], name: str, level: Level, words: str) -> None:
    server: Any = Says(**says)
    found = {finding.name: finding for finding in findings(server)}
    judged = found.pop(f"redis {name}")
    assert judged.level is level and words in f"{judged.says}: {judged.remedy}"
    assert {other.level for other in found.values()} == {Level.OK}
    assert check_redis(server) == ([] if level is Level.OK else [f"{judged.says}: {judged.remedy}"])


@given(used=st.integers(0, 10**13), own=st.integers(0, 10**13), machine=st.integers(0, 10**13))
def test_the_more_is_used_the_worse_it_is(used: int, own: int, machine: int) -> None:
    order = list(Level)
    levels = []
    for size in (used, used + 1, 2 * used + 1):
        server: Any = Says(used_memory=size, maxmemory=own, total_system_memory=machine)
        levels.append(order.index(findings(server)[3].level))
    assert levels == sorted(levels)


def test_a_server_that_does_not_say(server: Server) -> None:
    server.client.execute_command(
        "ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-info"
    )
    with connect(server.url.replace("//", "//blind:secret@")) as client:
        (found,) = findings(client)
        assert found.level is Level.WARN and "does not show how it is configured" in found.says
        assert "+info" in found.remedy and server_info(client) == {}
