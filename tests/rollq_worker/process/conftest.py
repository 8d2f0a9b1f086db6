"""A worker's parts: a ledger in the tests' Redis, and a job runner on a replay engine."""

import threading
from collections.abc import Iterator

import pytest

from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.job_task import JobRunner
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.rollq_worker.engine.engine_servers import replaying


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    client = connect(redis_url)
    yield Ledger(client, "r")
    client.close()


@pytest.fixture(scope="package")
def engine_url() -> Iterator[str]:
    with replaying() as url:
        yield url


@pytest.fixture
def runner(ledger: Ledger, engine_url: str, redis_url: str) -> Iterator[JobRunner]:
    tokenizer = load_tokenizer(None)
    engine = EnginePool([engine_url], vocab_size=tokenizer.vocab_size)
    settings = Settings(redis_url=redis_url, engine_urls=(engine_url,), concurrency=4)
    yield JobRunner(settings, ledger.redis, engine, tokenizer, "w", threading.Event())
    engine.close()
