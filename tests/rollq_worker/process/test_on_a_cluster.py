"""A worker whose runs lie on several servers, one of which is away or out of memory: the slots play
runs of the others, and nothing is lost.
"""

import logging
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from rollq.ledger.keys import Keys
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq_worker.process import job_task, startup_checks
from rollq_worker.process.attempts import attempt
from rollq_worker.process.away_runs import AwayRuns
from rollq_worker.process.job_task import JobRunner
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import act_at, running, submit
from tests.servers import Cluster, Server
from tests.waiting import until

RUN = "r"
AWAY = {"stop": "refused: its Redis is away"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"), alone=True)
    yield found
    found.close()


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    """The one that has the run."""
    for each in cluster.servers:
        each.client.flushall()
    yield (found := owner(cluster, RUN))
    cluster.heal(found)


@pytest.fixture
def ledger(cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setattr(job_task, "CLAIM_FOR_S", 0.2)
    monkeypatch.setattr(job_task, "AWAY_PAUSE_S", 0.05)
    monkeypatch.setattr(attempt, "CLUSTER_WAIT_S", 0.2)
    with connect(cluster.url, patience_s=0.2) as client:
        yield Ledger(client, RUN)


@pytest.fixture
def runner(ledger: Ledger, cluster: Cluster, engine_url: str) -> Iterator[JobRunner]:
    with running(ledger, engine_url, redis_url=cluster.url) as found:
        yield found
        found.draining.set()


@pytest.fixture
def elsewhere(cluster: Cluster, ledger: Ledger) -> Ledger:
    """A run of another server."""
    home = owner(cluster, RUN)
    return Ledger(
        ledger.redis,
        next(run for run in ("a", "b", "c", "d", "e") if owner(cluster, run) is not home),
    )


def waiting(runner: JobRunner) -> AwayRuns:
    assert runner.away is not None
    return runner.away


def owner(cluster: Cluster, run: str) -> Server:
    return cluster.owner(int(key_slot(Keys(run).meta.encode())))


def test_a_server_that_is_out_of_memory_holds_no_slot(
    runner: JobRunner, ledger: Ledger, elsewhere: Ledger, server: Server
) -> None:
    job_id, other = submit(ledger), submit(elsewhere, run=elsewhere.run)
    server.client.config_set("maxmemory", 1)
    assert runner.run(job_id) == AWAY
    assert runner.run(other)["stop"] == "done"
    server.client.config_set("maxmemory", 0)
    until(lambda: RUN not in waiting(runner))
    assert (
        reader(ledger).stats()["released"] == 1
    )  # it was claimed to see that claims are taken again
    assert runner.run(job_id)["stop"] == "done"


def test_messages_of_a_server_that_is_away_go_back_once_it_is_there(
    runner: JobRunner, ledger: Ledger, elsewhere: Ledger, server: Server
) -> None:
    jobs, other = (
        [submit(ledger, group=f"g{n}") for n in range(3)],
        submit(elsewhere, run=elsewhere.run),
    )
    ledger.confirm(jobs)
    server.kill()
    assert [runner.run(job_id) for job_id in jobs] == [AWAY] * 3
    assert RUN in waiting(runner) and runner.run(other)["stop"] == "done"
    server.start()
    until(lambda: RUN not in waiting(runner))
    stats, now = reader(ledger).stats(), ledger.scripts.now()
    assert (stats["queued"], stats["leased"], stats["expired"]) == (3, 0, 0)
    assert all(ledger.redis.zscore(ledger.keys.queued, job_id) < now + 11 for job_id in jobs)
    assert runner.run(jobs[0])["stop"] == "done"


def test_a_claim_whose_reply_was_lost_costs_nothing(
    runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, replies = submit(ledger), count()
    claim = runner._claims(RUN).claim

    def lose_first(*args: Any, **options: Any) -> Any:
        reply = claim(*args, **options)
        if not next(replies):
            raise redis.TimeoutError("Timeout reading from socket")
        return reply

    monkeypatch.setattr(runner._claims(RUN), "claim", lose_first)
    assert runner.run(job_id) == AWAY
    until(lambda: RUN not in waiting(runner))
    stats = reader(ledger).stats()
    assert (stats["queued"], stats["leased"], stats["released"], stats["failures"]) == (1, 0, 1, {})


def test_an_episode_whose_server_goes_away_gives_its_slot_up_and_goes_on_later(
    runner: JobRunner, ledger: Ledger, server: Server
) -> None:
    job_id = submit(ledger)
    act_at(runner, ledger, job_id, 4, server.kill)
    assert runner.run(job_id) == {"job": job_id, "stop": "fenced"}
    assert RUN in waiting(runner) and runner.leases.held() == []
    server.start()
    until(lambda: RUN not in waiting(runner))
    stats = reader(ledger).stats()
    assert (stats["queued"], stats["leased"], stats["released"], stats["failures"]) == (1, 0, 1, {})
    assert runner.run(job_id)["stop"] == "done" and reader(ledger).stats()["resumed"] == 1


def test_a_worker_starts_while_a_server_is_away(
    ledger: Ledger, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for away in cluster.servers:  # one of them has the keys that the check of rights names
        away.kill()
        caplog.clear()
        try:
            with caplog.at_level(logging.WARNING), connect(cluster.url, patience_s=0) as client:
                startup_checks.check(Settings(redis_url=cluster.url), client)
        finally:
            away.start()
            until(cluster.agree)
        assert f"Redis at 127.0.0.1:{away.port} does not answer" in caplog.text
