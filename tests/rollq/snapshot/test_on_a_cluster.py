"""Runs of several servers, one of which is away or out of memory: what is said of its runs and of
the others.
"""

from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from rollq import cli
from rollq.errors import LedgerError
from rollq.ledger.keys import ACTIVE, REAPER, RUNS, WORKERS, Keys
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.metrics.of_runs import RunMetrics
from rollq.servers.cluster import ClusterClient
from rollq.servers.connection import connect
from rollq.snapshot.diagnosis import fleet_holdup, look_on
from rollq.snapshot.fleet import each_run, read_fleet, read_one_run
from tests.rollq.client.fleets import live
from tests.rollq.samples import group
from tests.servers import HOST, Cluster, Server

SHARED = (RUNS, ACTIVE, WORKERS, REAPER, "rollq")
"""Keys of all runs, and the one that names the server of the clock."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"), alone=True)
    yield found
    found.close()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    with connect(cluster.url, patience_s=0) as client:
        yield client  # type: ignore[misc]


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    """One that has none of the keys of all runs."""
    for each in cluster.servers:
        each.client.flushall()
    shared = {owner(cluster, key) for key in SHARED}
    yield (found := next(each for each in cluster.servers if each not in shared))
    cluster.heal(found)


@pytest.fixture
def runs(client: ClusterClient, cluster: Cluster, server: Server) -> tuple[str, str]:
    """A run of that server, and one of another."""
    names = [f"r{number}" for number in range(20)]
    there = {name: owner(cluster, Keys(name).meta) is server for name in names}
    found = (
        next(name for name in names if there[name]),
        next(name for name in names if not there[name]),
    )
    for run in found:
        Ledger(client, run).submit(group(run=run))
    return found


def owner(cluster: Cluster, key: str) -> Server:
    return cluster.owner(int(key_slot(key.encode())))


def test_a_server_that_is_out_of_memory_is_named_to_its_runs(
    client: ClusterClient, server: Server, runs: tuple[str, str]
) -> None:
    its, other = runs
    server.client.config_set("maxmemory", 1)
    full = f"at {HOST}:{server.port}, Redis is out of memory"
    assert look_on(read_one_run(LedgerReader(client, its))).startswith(f"run {its}: {full}")
    assert full not in look_on(read_one_run(LedgerReader(client, other)))
    assert fleet_holdup(read_fleet(client)).startswith(full)


def test_the_runs_of_the_others_are_shown_while_a_server_is_away(
    client: ClusterClient,
    server: Server,
    runs: tuple[str, str],
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    its, other = runs
    server.kill()
    away = f"Redis at {HOST}:{server.port} does not answer"
    fleet = read_fleet(client)
    assert [run.run for run in fleet.runs] == [other] and fleet_holdup(fleet).startswith(away)
    assert fleet.unreadable == [f"run {its}: {away}. Start it again"]
    live(Ledger(client, other), busy=4)
    said = look_on(read_one_run(LedgerReader(client, other)))
    assert f"{away}: start it again. 2 jobs are queued" in said and "more workers" not in said
    counts = {name: found for name, _, found in each_run(client)}
    assert isinstance(counts[its], LedgerError) and not isinstance(counts[other], LedgerError)
    monkeypatch.setenv("ROLLQ_BROKER_URL", f"redis://{HOST}:1/0")
    assert cli.main(["top", "--once", "--redis", cluster.url]) == 0
    shown = capsys.readouterr().out
    assert f"\n{other} " in shown and away in shown


def test_the_runs_of_the_others_are_shown_while_a_slot_has_no_server(
    client: ClusterClient,
    server: Server,
    runs: tuple[str, str],
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    its, other = runs
    slot = key_slot(Keys(its).meta.encode())
    for each in cluster.servers:
        each.client.execute_command("CLUSTER", "DELSLOTS", slot)
    try:
        with connect(cluster.url, patience_s=0) as client:
            fleet = read_fleet(client)
            counts = {name: found for name, _, found in each_run(client)}
            samples = RunMetrics(client).read()
        monkeypatch.setenv("ROLLQ_BROKER_URL", f"redis://{HOST}:1/0")
        assert cli.main(["top", "--once", "--redis", cluster.url]) == 0
    finally:
        server.client.execute_command("CLUSTER", "ADDSLOTS", slot)
    why = f"run {its}: no server of the cluster has its slot"
    assert [run.run for run in fleet.runs] == [other] and fleet.unreadable[0].startswith(why)
    assert [s.labels for s in samples if s.metric.name == "rollq_jobs_queued"] == [(other,)]
    assert isinstance(counts[its], LedgerError) and not isinstance(counts[other], LedgerError)
    shown = capsys.readouterr().out
    assert f"\n{other} " in shown and why in shown
