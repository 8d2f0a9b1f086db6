"""What the worker's Celery app logs, and when it takes the next message."""

import io
import logging
from types import SimpleNamespace

import celery
import pytest
import redis
from celery.worker import state
from celery.worker.request import create_request_cls
from kombu.asynchronous import Hub, get_event_loop, set_event_loop

from rollq.client.celery_publisher import TASK
from rollq.errors import Unwritable
from rollq.settings import Settings
from rollq_worker.process import celery_app
from rollq_worker.process.celery_app import Request, shorten_outages
from rollq_worker.process.monitoring.task_events import TaskEvents


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


def test_the_loop_is_woken_once_a_jobs_slot_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a full worker would take its next message at the next timer only, up to a second later."""
    app = celery.Celery("test", set_as_current=False)
    task = app.task(play, name=TASK, ignore_result=True)
    app.finalize()
    slots: list[int] = []
    loop = SimpleNamespace(call_soon=lambda _: slots.append(len(state.reserved_requests)))
    monkeypatch.setattr(celery_app, "get_event_loop", lambda: loop)
    eventer = SimpleNamespace(enabled=True, send=lambda *_, **__: None)
    pool = SimpleNamespace(apply_async=None)
    made = create_request_cls(Request, app.tasks[task.name], pool, hostname="w", eventer=eventer, app=app)
    message = app.amqp.create_task_message("an-id", TASK, args=("run/group/0",))
    sent = SimpleNamespace(headers=message.headers, body=message.body, delivery_info={}, properties={})
    received = made(sent, decoded=True, app=app, eventer=eventer)
    state.task_reserved(received)
    TaskEvents(received.tell).ended({"stop": "ignored"})  # told while the job has its slot
    assert len(state.reserved_requests) == 1 and not slots
    received.on_success((False, None, 0.1))
    assert slots == [0]


def test_a_lost_connection_does_not_make_the_loop_forgotten() -> None:
    """Celery resets its loop then, and kombu no longer knows it."""
    hub = Hub()
    try:
        hub.reset()
        consumer = object.__new__(celery_app.Consumer)
        consumer.blueprint, consumer.event_dispatcher = SimpleNamespace(send_all=lambda *_, **__: None), None
        consumer.register_with_event_loop(hub)
        assert get_event_loop() is hub
    finally:
        hub.close()
        set_event_loop(None)


def play(job_id: str) -> None: ...


def test_a_broker_that_is_full_is_not_to_be_started(redis_url: str) -> None:
    client, settings = redis.Redis.from_url(redis_url), Settings(redis_url=redis_url, broker_url=redis_url)
    app = celery_app.bare_app(redis_url)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unwritable, match=r"the broker at redis://.*Raise its maxmemory"):
            celery_app.check_broker(app, settings)
    finally:
        client.config_set("maxmemory", 0)
        client.close()
