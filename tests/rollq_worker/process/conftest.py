"""A worker's parts: a ledger in the tests' Redis, and a job runner on a replay engine."""

from collections.abc import Iterator

import pytest
import redis

from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq_worker.process.job_task import JobRunner
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.process.ledgers import running


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def ledger(client: "redis.Redis") -> Ledger:
    return Ledger(client, "r")


@pytest.fixture(scope="package")
def engine_url() -> Iterator[str]:
    with replaying() as url:
        yield url


@pytest.fixture
def runner(ledger: Ledger, engine_url: str) -> Iterator[JobRunner]:
    with running(ledger, engine_url) as found:
        yield found
