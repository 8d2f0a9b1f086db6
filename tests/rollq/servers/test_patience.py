"""A wait for a Redis that is away: it is said, once for all threads, and without the password."""

import logging

import pytest
import redis

from rollq.servers import patience as module
from rollq.servers.connection import connect
from tests.conftest import free_port


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    module._said.clear()
    module._reached.clear()


def test_a_wait_that_lasts_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    port = free_port()
    client = connect(f"redis://user:secret@127.0.0.1:{port}/0", retries=2)
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    client.close()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and f"127.0.0.1:{port}/0 does not answer" in record.message
    assert "secret" not in record.message


def test_a_server_that_never_answered_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    client = connect(f"redis://user:secret@127.0.0.1:{free_port()}/0")
    with pytest.raises(module.NoRedis, match="start one with `rollq redis`, or give another address") as caught:
        client.ping()
    client.close()
    assert isinstance(caught.value, redis.ConnectionError) and "secret" not in str(caught.value)


def test_a_short_wait_is_not(caplog: pytest.LogCaptureFixture) -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0", retries=1)
    with pytest.raises(redis.ConnectionError):
        client.ping()
    client.close()
    assert not caplog.records


def test_the_pauses_grow_to_their_limit() -> None:
    module._reached.add("r")
    pauses = [module.Backoff("r").compute(failures) for failures in range(1, 40)]
    assert all(0.05 <= pause <= 2.0 for pause in pauses) and min(pauses[6:]) >= 1.0
