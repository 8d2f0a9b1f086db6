"""Clients and fleets for the engine tests, which retry without long pauses."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rollq_worker.engine import client as engine_client
from rollq_worker.engine.client import EngineClient
from rollq_worker.remote import waiting
from tests.conftest import free_port
from tests.rollq_worker.engine.engine_servers import ScriptedEngine
from tests.rollq_worker.engine.pool_fleet import Fleet


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(engine_client, "CONNECTION_LOST_BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(waiting, "CHECK_S", 0.02)


@pytest.fixture
def connect() -> Iterator[Callable[..., EngineClient]]:
    """Makes clients of a scripted engine or an address; closes them."""
    clients: list[EngineClient] = []

    def make(engine: ScriptedEngine | str, **options: Any) -> EngineClient:
        clients.append(EngineClient(engine if isinstance(engine, str) else engine.url, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[..., EngineClient]) -> EngineClient:
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
