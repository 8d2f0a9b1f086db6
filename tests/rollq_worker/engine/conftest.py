"""Clients and fleets for the engine tests, which retry without long pauses."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rollq_worker.engine import sglang_client
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.remote import waiting
from tests.conftest import free_port
from tests.rollq_worker.engine.engine_servers import ScriptedEngine
from tests.rollq_worker.engine.pool_fleet import Fleet


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_client, "BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(sglang_client, "CONNECTION_LOST_BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(waiting, "CHECK_S", 0.02)


@pytest.fixture
def connect() -> Iterator[Callable[..., SGLangEngine]]:
    """Makes clients of a scripted engine or an address; closes them."""
    clients: list[SGLangEngine] = []

    def make(engine: ScriptedEngine | str, **options: Any) -> SGLangEngine:
        clients.append(SGLangEngine(engine if isinstance(engine, str) else engine.url, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[..., SGLangEngine]) -> SGLangEngine:
    """A client of a port on which nothing listens yet."""
    return connect(f"http://127.0.0.1:{free_port()}")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def make_fleet() -> Iterator[Callable[[int], Fleet]]:
    fleets: list[Fleet] = []

    def make(size: int) -> Fleet:
        fleets.append(Fleet(size))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def fleet(make_fleet: Callable[[int], Fleet]) -> Fleet:
    return make_fleet(3)
