"""What the worker's Celery app logs."""

import io
import logging

import pytest
import redis

from rollq_worker.process.celery_app import shorten_outages


@pytest.mark.parametrize(
    ("error", "traceback"), [(redis.ConnectionError("gone"), False), (ValueError("a bug"), True)], ids=["outage", "bug"]
)
def test_a_lost_connection_shows_no_traceback(error: Exception, traceback: bool) -> None:
    logged = io.StringIO()
    logger = logging.Logger("celery")
    logger.addHandler(logging.StreamHandler(logged))
    shorten_outages(logger)
    try:
        raise error
    except Exception:
        logger.exception("Couldn't ack")
    assert "Couldn't ack" in logged.getvalue() and ("Traceback" in logged.getvalue()) is traceback
