"""What the worker's Celery app logs, and how it goes about its broker."""

import io
import logging

import pytest
import redis
from celery.utils.log import ColorFormatter
from kombu.exceptions import OperationalError

from rollq.errors import Unwritable
from rollq.settings import Settings
from rollq_worker.process import celery_app
from rollq_worker.process.celery_app import clean_log
from tests.conftest import free_port


@pytest.mark.parametrize(
    ("error", "traceback"),
    [(redis.ConnectionError("gone"), False), (ValueError("a bug"), True)],
    ids=["outage", "bug"],
)
def test_a_lost_connection_shows_no_traceback(error: Exception, traceback: bool) -> None:
    logged = io.StringIO()
    logger = logging.Logger("celery")
    logger.addHandler(logging.StreamHandler(logged))
    clean_log(logger)
    try:
        raise error
    except Exception:
        logger.exception("Couldn't ack")
    assert "Couldn't ack" in logged.getvalue() and ("Traceback" in logged.getvalue()) is traceback


def test_foreign_words_in_the_log_cannot_control_the_terminal_or_begin_a_line() -> None:
    logged = io.StringIO()
    logger = logging.Logger("root")
    handler = logging.StreamHandler(logged)
    handler.setFormatter(ColorFormatter("%(message)s"))
    logger.addHandler(handler)
    clean_log(logger)
    try:
        raise ValueError("\x1b[2J\n[CRITICAL] it is all lost")
    except ValueError:
        logger.exception("no %s\n", "\x1b]0;title\x07\n[CRITICAL] it is all lost")
    first, *traceback = logged.getvalue().splitlines()
    assert first == "\x1b[1;31mno \\x1b]0;title\\x07\\n[CRITICAL] it is all lost"  # in Celery's red
    assert traceback[-2:] == ["  ValueError: \\x1b[2J", "  [CRITICAL] it is all lost\x1b[0m"]
    assert len(traceback) > 3 and all(line.startswith("  ") for line in traceback)


def test_pauses_between_tries_to_connect_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery asks for none, and kombu's own would grow to half a minute."""
    app, pauses = celery_app.bare_app(Settings(broker_url=f"redis://127.0.0.1:{free_port()}/0")), []
    monkeypatch.setattr("kombu.utils.functional.sleep", pauses.append)
    with app.connection_for_read() as connection, pytest.raises(OperationalError):
        connection.ensure_connection(None, 8)
    assert pauses and max(pauses) <= 1


def test_a_broker_that_is_full_is_not_to_be_started(redis_url: str) -> None:
    client, settings = (
        redis.Redis.from_url(redis_url),
        Settings(redis_url=redis_url, broker_url=redis_url),
    )
    app = celery_app.bare_app(settings)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unwritable, match=r"the broker at redis://.*Raise its maxmemory"):
            celery_app.check_broker(app)
    finally:
        client.config_set("maxmemory", 0)
        client.close()
