"""A ledger on a Redis Cluster: runs are spread over the servers, a slot may move, and a server may
restart.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AuthenticationError

from rollq import Client, Job
from rollq.commands.connect import ping_redis
from rollq.errors import FailureClass, LedgerError, RollqError, SettingsError, Unwritable
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.keys import Keys
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader, runs
from rollq.servers import patience
from rollq.servers.cluster import ClusterClient
from rollq.servers.connection import connect
from rollq.servers.durability import Durability
from rollq.servers.health import Level, check_redis, findings, server_infos
from rollq.servers.rights import refused
from tests.conftest import free_port
from tests.e2e.stack import Stack, check_all_delivered
from tests.rollq.samples import claim, group, play
from tests.servers import HOST, Cluster, SlotMove
from tests.waiting import until

RUNS = ["r1", "r2", "r3", "r4", "r5"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(servers: Cluster) -> Cluster:
    """The same servers, emptied."""
    for server in servers.servers:
        server.client.flushall()
    return servers


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    client = connect(cluster.url)
    yield client
    client.close()


def slot(run: str) -> int:
    return int(key_slot(Keys(run).meta.encode()))


def test_runs_are_spread_over_the_servers(cluster: Cluster) -> None:
    assert len({cluster.owner(slot(run)).port for run in RUNS}) == 3


@pytest.mark.parametrize("user", ["rollq:wrong", "nobody:x"])
def test_a_wrong_user_is_told_at_once(cluster: Cluster, user: str) -> None:
    address = cluster.url.replace("//", f"//{user}@")
    with pytest.raises(RollqError, match="refuses this user or password"):
        ping_redis(address)
    began = time.monotonic()
    with pytest.raises(AuthenticationError):
        connect(address)
    assert time.monotonic() - began < 2.0


def test_everything_works_that_works_on_one_server(client: ClusterClient) -> None:
    for run in RUNS:
        ledger, reader, deliveries = (
            Ledger(client, run),
            LedgerReader(client, run),
            Deliveries(client, run),
        )
        ledger.submit(group("good", run=run))
        ledger.submit(group("bad", size=1, run=run))
        for sample in range(2):
            play(ledger, f"{run}/good/{sample}")
        lease = claim(ledger, f"{run}/bad/0").lease
        ledger.fail(f"{run}/bad/0", lease, FailureClass.JOB, "broken", final=True)
        ledger.seal()
        assert reader.group_states(["good", "bad", "none"]) == ["ready", "dropped", ""]
        assert [found.job_id for found in reader.dead()] == [f"{run}/bad/0"]
        assert reader.job(f"{run}/good/0").state == "done"
        assert len(reader.read([f"{run}/good/0", f"{run}/good/1"])) == 2
        assert [taken.id for taken in deliveries.take(1, "consumer/1").groups] == ["good"]
        deliveries.ack("consumer/1")
        assert reader.stats()["delivered"] == 2
        assert DeadLetters(client, run).ids(FailureClass.JOB) == [f"{run}/bad/0"]
        assert not deliveries.wait("nobody", 0.1)
    assert runs(client) == RUNS
    for run in RUNS[:2]:
        assert DeadLetters(client, run).forget_run() > 4
    assert runs(client) == RUNS[2:]
    assert check_redis(client) == []


def test_a_primary_that_evicts_is_named(client: ClusterClient, cluster: Cluster) -> None:
    bad = cluster.servers[1]
    bad.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = {one.name: one.level for one in findings(client)}
    finally:
        bad.client.config_set("maxmemory-policy", "noeviction")
    wrong = [name for name, level in found.items() if level is not Level.OK]
    assert wrong == [f"redis eviction at 127.0.0.1:{bad.port}"] and "redis memory" in found
    assert refused(client, [("SET", "x", 1)]) is None  # its servers have users of their own


def test_a_primary_that_is_away_is_a_finding_and_the_others_are_asked(
    client: ClusterClient, cluster: Cluster
) -> None:
    away = cluster.servers[1]
    away.kill()
    try:
        told, warnings = findings(client), check_redis(client)
        assert {type(said) for said in server_infos(client).values()} == {
            dict,
            redis.ConnectionError,
        }
    finally:
        away.start()
        until(cluster.agree)
    bad = [found for found in told if found.level is not Level.OK]
    assert [found.name for found in bad] == [f"redis at {HOST}:{away.port}"] and len(told) == 6
    assert warnings == [f"{bad[0].says}: {bad[0].remedy}"]
    assert f"Redis at {HOST}:{away.port} does not answer" in bad[0].says


def test_nothing_sees_a_run_whose_slot_moves(
    cluster: Cluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While some of its keys are here and some are there, its scripts are refused and plain reads
    work.
    """
    monkeypatch.setattr(patience, "MOVING_S", 0.3)
    ledger, reader = Ledger(client, "r1"), LedgerReader(client, "r1")
    ledger.submit(group(run="r1"))
    other = Ledger(client, next(run for run in RUNS if slot(run) != slot("r1")))
    move = SlotMove(cluster, slot("r1"))
    for _ in range(3):
        with pytest.raises(Unwritable, match=r"run r1: .*its cluster slot is being moved"):
            ledger.submit(group("next", run="r1"))
        assert move.move(2)
        assert reader.job("r1/g/0") is not None
        assert reader.group_states(["g"]) == ["open"]
    assert other.submit(group(run=other.run)).new
    move.end()
    assert ledger.submit(group("next", run="r1")).new
    assert reader.stats()["submitted"] == 4


def test_calls_wait_for_a_server_that_restarts(cluster: Cluster, client: ClusterClient) -> None:
    ledger = Ledger(client, "r1")
    ledger.submit(group(run="r1"))
    server = cluster.owner(slot("r1"))
    server.kill()
    back = threading.Timer(1.0, server.start)
    back.start()
    try:
        assert ledger.submit(group("next", run="r1")).new
        pipe = client.pipeline(transaction=False)
        for run in RUNS:
            pipe.exists(Keys(run).meta)
        assert pipe.execute() == [run == "r1" for run in RUNS]
    finally:
        back.join()
    until(cluster.agree)


def test_a_cluster_that_is_away_is_a_lost_connection() -> None:
    with pytest.raises(RollqError, match="no Redis at cluster://"):
        ping_redis(f"cluster://{HOST}:{free_port()}")


def test_a_server_that_is_no_cluster_is_named(redis_url: str) -> None:
    with pytest.raises(RollqError, match=r"no Redis Cluster"):
        ping_redis(redis_url.replace("redis://", "cluster://").removesuffix("/0"))


def test_the_broker_has_a_redis_of_its_own(cluster: Cluster) -> None:
    with pytest.raises(SettingsError, match="ROLLQ_BROKER_URL"):
        Client(cluster.url, run="r")
    Client(cluster.url, run="r", broker_url="redis://127.0.0.1:1/0").close()


def test_a_server_without_a_replica_cannot_confirm(client: ClusterClient) -> None:
    ledger = Ledger(client, "r1", Durability.REPLICA)
    with pytest.raises(LedgerError, match="connected replicas: 0"):
        ledger.submit(group(run="r1"))


@pytest.mark.timeout(900)
def test_runs_go_on_while_a_slot_moves_and_a_server_restarts(
    cluster: Cluster, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLQ_BROKER_URL", redis_url)
    stack = Stack(tmp_path, cluster.url)
    moving, others, jobs = "r1", RUNS[1:], 24
    try:
        stack.engine("--latency", "0.2")
        workers = [stack.worker(8), stack.worker(8)]
        for run in RUNS:
            with Client(cluster.url, run=run) as client:
                client.submit([Job(env="shop", task=task, size=4) for task in range(jobs // 4)])
        stack.wait(lambda: stack.stats(moving)["done"] >= 2, 150, "some jobs")
        move = SlotMove(cluster, slot(moving))
        while move.move(20):
            time.sleep(0.1)
        move.end()
        server = cluster.owner(slot(others[0]))
        server.kill()
        time.sleep(1.0)
        server.start()
        for run in RUNS:
            check_all_delivered(stack, run, jobs)
        assert [worker.poll() for worker in workers] == [None, None], stack.logs()
    finally:
        stack.close()
