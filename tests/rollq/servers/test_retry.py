"""A wait for a Redis that is away: how long it lasts, and that it is said once for all threads,
without passwords.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.sentinel import MasterNotFoundError

from rollq.errors import Unwritable
from rollq.servers import connection
from rollq.servers import retry as module
from rollq.servers.connection import connect
from tests.conftest import free_port
from tests.servers import Server
from tests.waiting import until


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    for memory in (module._answered, module._away_since, module._warned):
        memory.clear()


def patiently(name: str, for_s: float, call: Callable[[], None]) -> None:
    """As the client of a server at that address calls it."""
    address = module.Address(name)
    module.RetryLoop(for_s=for_s)(lambda: address(call))


def test_a_loop_within_another_makes_its_call_once() -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise redis.ConnectionError("away")

    inner = module.RetryLoop(for_s=60.0)
    with pytest.raises(redis.ConnectionError):
        module.RetryLoop(for_s=0.0)(lambda: inner(fail))
    assert len(tries) == 1
    with pytest.raises(redis.ConnectionError):
        module.RetryLoop(for_s=0.2)(fail)  # a loop that has ended leaves the thread to others
    assert len(tries) > 2


def test_a_wait_that_lasts_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORT_S", 0.0)
    port = free_port()
    client = connect(f"redis://user:secret@127.0.0.1:{port}/0", patience_s=0.3)
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    client.close()
    (record,) = caplog.records
    assert (
        record.levelno == logging.WARNING
        and f"127.0.0.1:{port}/0 does not answer" in record.message
    )
    assert "secret" not in record.message


def test_a_wait_for_sentinels_is_said_without_their_passwords(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of older versions of redis-py shows its clients with all their options."""
    monkeypatch.setattr(module, "SHORT_S", 0.0)
    sentinel = (
        "<redis.client.Redis(<redis.connection.ConnectionPool(<Connection(password=secret)>)>)>"
    )

    def look() -> None:
        raise MasterNotFoundError(
            f"No master found for 's' : {sentinel} - ConnectionError('refused')"
        )

    with pytest.raises(MasterNotFoundError):
        patiently("r", 0.1, look)
    (record,) = caplog.records
    assert "ConnectionError('refused')" in record.message and "secret" not in record.message


def test_a_server_that_never_answered_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    client = connect(f"redis://user:secret@127.0.0.1:{free_port()}/0")
    with pytest.raises(
        module.NoRedis, match="Start one with `rollq redis`, or give another address"
    ) as caught:
        client.ping()
    client.close()
    assert isinstance(caught.value, redis.ConnectionError) and "secret" not in str(caught.value)


def test_a_try_that_takes_longer_than_all_the_patience_is_said_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a dead name server."""
    monkeypatch.setattr(module, "SHORT_S", 0.2)
    monkeypatch.setattr(module, "FIRST_S", 0.2)

    def look() -> None:
        time.sleep(0.3)
        raise redis.ConnectionError("Temporary failure in name resolution")

    with pytest.raises(module.NoRedis):
        patiently("wrong", 0.1, look)
    module._answered.add("known")
    with pytest.raises(redis.ConnectionError):
        patiently("known", 0.1, look)
    assert "Redis at known does not answer" in caplog.text


def test_a_server_that_reads_its_file_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was told to start one would start a second one beside it."""
    monkeypatch.setattr(module, "FIRST_S", 0.0)

    def load() -> None:
        raise redis.BusyLoadingError("Redis is loading the dataset in memory")

    with pytest.raises(redis.BusyLoadingError) as caught:
        patiently("r", 0.2, load)
    assert caught.value.__cause__ is None  # nor is it its own cause


def test_a_short_wait_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0", patience_s=0.1)
    with pytest.raises(redis.ConnectionError):
        client.ping()
    client.close()
    assert not caplog.records


@pytest.mark.parametrize("commands", ["one", "pipeline"])
def test_a_frozen_server_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: str
) -> None:
    """It accepts connections and answers none. redis-py's own retries, nested, would take seven
    times as long.
    """
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_S", 0.2)
    server = Server(tmp_path)
    try:
        with connect(server.url, patience_s=1.0) as client:
            client.ping()
            os.kill(server.process.pid, signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(redis.TimeoutError):
                client.ping() if commands == "one" else client.pipeline(
                    transaction=False
                ).ping().execute()
            assert 1.0 < time.monotonic() - began < 5.0
            os.kill(server.process.pid, signal.SIGCONT)
            until(client.ping)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.kill()


def test_calls_outlast_a_server_that_restarts(tmp_path: Path) -> None:
    """Commands, pipelines and transactions; and the reply to one that broke off is not read as that
    to the next.
    """
    server = Server(tmp_path)
    try:
        with connect(server.url) as client:
            pipe = client.pipeline(transaction=False)
            assert [client.incr("n"), *pipe.incr("n").incr("n").execute()] == [1, 2, 3]
            server.kill()
            server.start()
            assert client.incr("m") == 1
            server.kill()
            server.start()
            assert client.pipeline().incr("m").get("none").execute()[1] is None
    finally:
        server.kill()


def test_the_pauses_grow_to_their_limit() -> None:
    pauses = [module.BACKOFF.compute(failures) for failures in range(1, 40)]
    assert all(0.05 <= pause <= 2.0 for pause in pauses) and min(pauses[6:]) >= 1.0


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), Unwritable("full")])
def test_a_wait_without_end_has_none(error: Exception) -> None:
    tries = []

    def call() -> str:
        tries.append(1)
        if len(tries) < 1500:
            raise error
        return "there"

    assert module.RetryLoop(wait=lambda seconds: None)(call) == "there"
