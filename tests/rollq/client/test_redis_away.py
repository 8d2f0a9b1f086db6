"""Redis is away for longer than a call waits: trainers and producers wait on, and what cannot come
back is raised.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from rollq import Client
from rollq.client import tracking
from rollq.errors import ClientClosed, PullTimeout, RollqError
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.servers import retry
from rollq.servers.retry import NoRedis
from rollq.snapshot.run import read_run
from tests.conftest import free_port
from tests.ledger_of import ledger_of
from tests.rollq.client.test_tracking import Notes
from tests.rollq.groups import names, play_groups
from tests.rollq.samples import group
from tests.servers import Server

AWAY_S = 1.0
"""Seconds without Redis."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, ["--appendfsync", "always"])  # else a busy disk loses what is killed
    yield server
    server.kill()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, run="r") as client:
        client.submit(group("a"))
        yield client


def over_an_outage(server: Server, *calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that are made while Redis is away."""
    server.kill()
    with ThreadPoolExecutor() as threads:
        made: list[Future[Any]] = [threads.submit(call) for call in calls]
        try:
            time.sleep(AWAY_S)
            early = [one.done() for one in made]
        finally:
            server.start()  # before the threads are joined
        assert not any(early)
        return [one.result(60) for one in made]


def test_batches_submissions_and_acknowledgements_wait(server: Server, client: Client) -> None:
    play_groups(ledger_of(client), "a")
    with client.consumer() as consumer:
        batch, submitted = over_an_outage(
            server, lambda: consumer.next(1), lambda: client.submit(group("b"))
        )
        assert names(batch) == ["a"] and len(submitted.new) == len(group("b"))
        over_an_outage(server, batch.ack, lambda: client.publish(1), client.seal)
    stats = client.stats()
    assert (stats["groups_acked"], stats["groups_open"]) == (1, 1)
    assert client.published() is not None and client.published().step == 1


def test_a_consumer_that_waits_for_its_batch_waits_on(server: Server, client: Client) -> None:
    with client.consumer() as consumer, ThreadPoolExecutor() as threads:
        waiting = threads.submit(consumer.next, 1)
        time.sleep(0.2)
        server.kill()
        time.sleep(AWAY_S)
        early = waiting.done()
        server.start()
        assert not early
        with Ledger(redis.Redis(port=server.port), "r").redis as connection:
            play_groups(Ledger(connection, "r"), "a")
            assert names(waiting.result(60)) == ["a"]


def test_a_timeout_is_kept(server: Server, client: Client) -> None:
    evaluation = client.evaluate(group("e")[:1], 1, "1")
    with client.consumer() as consumer:
        server.kill()
        for wait in (partial(consumer.next, 1), evaluation.result):
            began = time.monotonic()
            with pytest.raises(PullTimeout):
                wait(timeout=AWAY_S)
            assert AWAY_S <= time.monotonic() - began < 20 * AWAY_S
        server.start()


def test_a_batch_that_was_taken_keeps_the_timeout_too(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_groups(ledger_of(client), "a")
    with client.consumer() as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(LedgerReader, "read", lambda *args: server.kill() or server.client.ping())
            with pytest.raises(PullTimeout):
                consumer.next(1, timeout=AWAY_S)
        server.start()
        assert names(consumer.next(1)) == ["a"]


def test_a_consumer_that_closes_in_a_short_outage_gives_its_groups_back(
    server: Server, client: Client
) -> None:
    play_groups(ledger_of(client), "a")
    consumer = client.consumer()
    assert names(consumer.next(1)) == ["a"]
    server.kill()
    with ThreadPoolExecutor() as threads:
        closing = threads.submit(consumer.close)
        time.sleep(0.2)
        server.start()
        closing.result(30)
    with client.consumer() as other:
        assert names(other.next(1, timeout=10.0)) == ["a"]


def test_what_is_closed_stops_waiting(server: Server, client: Client) -> None:
    consumer = client.consumer()
    evaluation = client.evaluate(group("e")[:1], 1, "1")
    server.kill()
    with ThreadPoolExecutor() as threads:
        try:
            waits = [threads.submit(consumer.next, 1)]
            time.sleep(0.2)
            consumer.close()
            waits += [
                threads.submit(client.submit, group("b")),
                threads.submit(client.consumer, name="t"),
            ]
            waits.append(threads.submit(client.stats))
            time.sleep(0.2)
            client.close()
            for one in waits:
                with pytest.raises(ClientClosed):
                    one.result(30)
            with pytest.raises(RollqError, match="closed"):
                evaluation.result(30)
        finally:
            server.start()


def test_a_step_is_told_to_its_tracker_once_redis_is_back(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_groups(ledger_of(client), "a")
    away, notes = threading.Event(), Notes()

    def read(*args: Any) -> Any:
        if not away.is_set():
            server.kill()
            away.set()
        return read_run(*args)

    monkeypatch.setattr(tracking, "read_run", read)
    with client.consumer(track=notes) as consumer:
        consumer.next(1)
        assert away.wait(60)
        time.sleep(AWAY_S)
        server.start()
    assert [step.step for step in notes.steps] == [0]


def test_an_address_without_redis_and_a_refused_login_are_raised(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_S", 0.0)
    server.client.config_set("requirepass", "right")
    server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for timeout in (None, 0):
        with client.consumer() as consumer, pytest.raises(redis.AuthenticationError):
            consumer.next(1, timeout)
    server.client.config_set("requirepass", "")
    with Client(f"redis://127.0.0.1:{free_port()}/0", run="r") as other, pytest.raises(NoRedis):
        next(other.batches(groups=1))
