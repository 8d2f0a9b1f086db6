"""What a call confirmed is there after the loss that its durability is for: a power cut, or a
failover.
"""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from rollq.errors import SettingsError, Unconfirmed
from rollq.ledger import scripts
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.servers import durability as durability_module
from rollq.servers.connection import connect
from rollq.servers.durability import Durability
from tests.conftest import free_port
from tests.rollq.samples import group, play
from tests.servers import HOST, PowerCut, Replicated, Server
from tests.waiting import until

MANY = 40


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "CONFIRM_FOR_S", 0.2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts servers that end with the test."""
    started: list[Any] = []

    def start(kind: Callable[..., Any], *args: Any) -> Any:
        if kind is PowerCut and (sys.platform != "linux" or shutil.which("cc") is None):
            pytest.skip("needs Linux and a C compiler (cc)")
        started.append(kind(tmp_path / str(len(started)), *args))
        return started[-1]

    yield start
    for one in started:
        (one.kill if isinstance(one, Server) else one.close)()


@pytest.fixture
def ledger_of() -> Iterator[Callable[[str, Durability], Ledger]]:
    """Ledgers at that address with that durability."""
    with ExitStack() as clients:
        yield lambda url, durability: Ledger(
            clients.enter_context(connect(url, patience_s=0.3)), "r", durability
        )


def has_waitaof(server: Server) -> bool:
    """Whether the server's WAITAOF can be believed."""
    return int(server.client.info("server")["redis_version"].split(".")[0]) >= 8


def known(url: str) -> int:
    """Number of jobs that the ledger at that address has."""
    with connect(url) as client:
        return int(LedgerReader(client, "r").stats()["submitted"])


def test_what_is_confirmed_by_the_disk_outlasts_a_power_cut(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger]
) -> None:
    power = server(PowerCut, ["--appendfsync", "always"])
    ledger = ledger_of(power.url, Durability.FSYNC)
    for number in range(MANY):
        ledger.submit(group(f"g{number}"))
    ledger.seal()
    power.cut()
    power.start()
    assert known(power.url) == 2 * MANY
    assert LedgerReader(ledger.redis, "r").stats()["sealed"]


def test_waitaof_outlasts_a_power_cut_of_a_server_that_writes_once_a_second(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    power = server(PowerCut, ["--appendfsync", "everysec"])
    if not has_waitaof(power):
        pytest.skip("WAITAOF tells the truth from Redis 8.0 on")
    monkeypatch.setattr(durability_module, "CONFIRM_MS", 3000)
    ledger = ledger_of(power.url, Durability.FSYNC)
    for number in range(5):
        ledger.submit(group(f"g{number}"))
    power.cut()
    power.start()
    assert known(power.url) == 10


def test_without_it_a_power_cut_takes_what_was_not_flushed(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger]
) -> None:
    power = server(PowerCut, ["--appendfsync", "no"])
    ledger = ledger_of(power.url, Durability.ASYNC)
    for number in range(MANY):
        ledger.submit(group(f"g{number}"))
    assert power.cut() > 0
    power.start()
    assert known(power.url) < 2 * MANY


def test_a_server_that_cannot_confirm_is_refused_before_anything_is_written(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger]
) -> None:
    plain = server(Server, ["--appendonly", "no"])
    with pytest.raises(SettingsError, match="--fsync always"):
        ledger_of(plain.url, Durability.FSYNC).submit(group())
    if not has_waitaof(plain):
        plain.client.config_set("appendonly", "yes")
        with pytest.raises(SettingsError, match="appendfsync everysec"):
            ledger_of(plain.url, Durability.FSYNC).submit(group())
    assert known(plain.url) == 0


def promote(replica: Server) -> None:
    replica.client.replicaof("NO", "ONE")
    until(lambda: replica.client.info("replication")["role"] == "master")


def test_what_a_replica_confirmed_is_there_when_the_primary_dies_at_once(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger]
) -> None:
    """Submissions of one thread and acknowledgements of another are cut off in the middle."""
    pair = server(Replicated)
    ledger = ledger_of(pair.primary.url, Durability.REPLICA)
    deliveries = Deliveries(ledger.redis, "r", Durability.REPLICA)
    for number in range(MANY):
        ledger.submit(group(f"done{number}", size=1))
        play(ledger, f"r/done{number}/0")
    submitted, acknowledged = 0, 0

    def submit() -> None:
        nonlocal submitted
        while True:
            try:
                ledger.submit(group(f"g{submitted}"))
            except redis.RedisError:
                return
            submitted += 1

    def acknowledge() -> None:
        nonlocal acknowledged
        while acknowledged < MANY:
            try:
                deliveries.take(1, f"consumer/{acknowledged}")
                deliveries.ack(f"consumer/{acknowledged}")
            except redis.RedisError:
                return
            acknowledged += 1

    threads = [threading.Thread(target=target) for target in (submit, acknowledge)]
    for thread in threads:
        thread.start()
    until(lambda: submitted > 20 and acknowledged > 10)
    pair.primary.kill()
    for thread in threads:
        thread.join(60)
    promote(pair.replicas[0])
    with connect(pair.replicas[0].url) as client:
        stats = LedgerReader(client, "r").stats()
    assert MANY + 2 * submitted <= stats["submitted"] <= MANY + 2 * submitted + 2
    assert acknowledged <= stats["groups_acked"] <= acknowledged + 1


def cut_off(pair: Replicated) -> None:
    """The replica no longer hears from the primary."""
    pair.replicas[0].client.replicaof(HOST, free_port())


def test_without_a_replica_the_call_says_what_is_missing(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it repeats what was written before, and so writes nothing."""
    pair = server(Replicated)
    ledger = ledger_of(pair.primary.url, Durability.REPLICA)
    ledger.submit(group("before"))
    cut_off(pair)
    until(lambda: pair.primary.client.info("replication")["connected_slaves"] == 0)
    wait_ms = durability_module.CONFIRM_MS
    monkeypatch.setattr(durability_module, "CONFIRM_MS", 300)
    for name in ("before", "after"):
        with pytest.raises(
            Unconfirmed, match=r"run r: submit of job r/\w+/0: .*connected replicas: 0"
        ):
            ledger.submit(group(name))
    ledger = ledger_of(pair.primary.url, Durability.REPLICA)
    with pytest.raises(Unconfirmed, match="connected replicas: 0"):
        ledger.submit(group("never"))
    assert known(pair.primary.url) == 4, "a server that cannot confirm at first is not written to"
    pair.replicas[0].client.replicaof(HOST, pair.primary.port)
    until(pair.in_step)
    monkeypatch.setattr(durability_module, "CONFIRM_MS", wait_ms)
    assert ledger.submit(group("after")).known == ["r/after/0", "r/after/1"]


def test_a_repeat_waits_for_what_another_connection_wrote(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger]
) -> None:
    pair = server(Replicated)
    ledger_of(pair.primary.url, Durability.ASYNC).submit(group())
    ledger = ledger_of(pair.primary.url, Durability.REPLICA)
    assert ledger.submit(group()).known
    assert known(pair.replicas[0].url) == 2


def test_acknowledging_makes_room_in_a_redis_that_is_full(
    server: Callable[..., Any], ledger_of: Callable[..., Ledger]
) -> None:
    pair = server(Replicated)
    ledger = ledger_of(pair.primary.url, Durability.ASYNC)
    ledger.submit(group(size=1))
    play(ledger, "r/g/0")
    deliveries = Deliveries(ledger.redis, "r", Durability.REPLICA)
    assert deliveries.take(1, "consumer/1").groups
    pair.primary.client.config_set("maxmemory", 1)
    deliveries.ack("consumer/1")
    assert LedgerReader(ledger.redis, "r").stats()["groups_acked"] == 1
