"""The worker's side of Celery, which distributes the jobs; the ledger decides who plays them.

A message carries a job id and nothing else. It is acknowledged early, because the ledger brings
back the jobs of a dead worker: a message that is lost, doubled or late costs only time.

Celery and kombu are unchanged, with documented settings and a few public methods overridden. A
worker exits when it cannot use its broker, for example at a message that is not JSON, with one line
of log. Its supervisor starts it again, without that message.
"""

import logging
import os
import time
import traceback
import warnings
from collections.abc import Callable
from copy import copy
from functools import partial
from textwrap import indent
from typing import Any

import celery
from celery import signals
from celery.app import amqp
from celery.apps import worker as celery_worker
from celery.exceptions import SecurityWarning, WorkerShutdown
from celery.worker import consumer, request, state
from kombu.connection import Connection as KombuConnection

from rollq.client.producing.broker import TASK, broker_settings
from rollq.errors import RollqError, SettingsError
from rollq.export.transcript import clean
from rollq.job import QUEUE
from rollq.ledger.keys import celery_queue
from rollq.servers.refusal import refuses_writes, translated
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.monitoring.task_events import STARTED, SUCCEEDED, TaskEvents

log = logging.getLogger("rollq.worker")

BROKER_TIMEOUT_S = 3.0
"""Seconds to wait for the broker's first answer when the worker starts."""
CHECK_EVERY_S = 5
"""Seconds between two checks of the wait for a message (1 s), which is overdue after as long. So a
silent connection is given up after 6 to 11 s.
"""
STUCK_S = 30.0
"""Seconds without a tick after which the loop counts as stuck. A worker that waits for its broker
has no ticks either.
"""
EXIT_BROKER = 1
"""Exit code of a worker that cannot use its broker."""
KEY_REMEDY = (
    "Rename the key (`redis-cli RENAME KEY KEY.damaged`) or delete it: the ledger sends its jobs "
    "again, and only then a worker starts"
)
MESSAGE_REMEDY = (
    "If it was another program's message, that is gone: start the worker again, and let only "
    "rollq's users write there (docs/deploy.md)"
)

TRANSPORT_OPTIONS = {
    # Messages are acknowledged early and the ledger sends lost ones again: the copies that kombu
    # would keep in Redis would only cost.
    "ack_emulation": False,
    "health_check_interval": CHECK_EVERY_S,
}
"""Options of a worker, beyond those of all who use the broker."""
CONFIG = {
    "task_default_queue": QUEUE,
    "task_serializer": "json",
    "accept_content": ["json"],
    "task_ignore_result": True,
    "task_store_errors_even_if_ignored": False,
    # the ledger redelivers; a late ack on Redis loses messages all the same
    "task_acks_late": False,
    # with early acks there are none; unset, it warns
    "worker_cancel_long_running_tasks_on_connection_loss": True,
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,  # a message waits in the broker, where any worker can take it
    # any client could set a rate limit, which stalls the run
    "worker_enable_remote_control": False,
    "worker_disable_rate_limits": True,
    "worker_send_task_events": True,
    "task_send_sent_event": True,
    "worker_redirect_stdouts": False,
    "worker_hijack_root_logger": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # when Redis takes no writes; other errors of this kind: see Consumer
    "broker_channel_error_retry": True,
}


class Connection(KombuConnection):
    """Connects every second, where kombu's own pauses grow to half a minute, and puts no message
    back.
    """

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        pauses = {"interval_start": 1, "interval_step": 0, "interval_max": 1}
        return super().ensure_connection(*args, **pauses | options)  # type: ignore[no-untyped-call]

    def channel(self) -> Any:
        channel = super().channel()  # type: ignore[no-untyped-call]
        # A message that ended a worker would end the next one, too. The ledger brings its job back.
        channel.do_restore = False
        return channel


class Amqp(amqp.AMQP):  # type: ignore[misc]
    Connection = Connection


class Request(request.Request):  # type: ignore[misc]
    """Celery's request of a task, for which `play` itself reports when its job began and how it
    ended.
    """

    outcome: tuple[str, dict[str, object]]
    """The event for the job's end, and its fields."""

    def send_event(self, type: str, **fields: object) -> None:
        """Sends the outcome: for Celery, a task begins with its message and succeeds whatever its
        job's outcome.
        """
        if type == SUCCEEDED:
            type, fields = self.outcome
        elif type == STARTED and not fields:
            return
        super().send_event(type, **fields)


class Consumer(consumer.Consumer):  # type: ignore[misc]
    """Celery's consumer. It sends events for Flower once a second, and ends the worker in one line
    of log.
    """

    def __init__(self, *args: Any, on_broken: Callable[[], object], **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_broken = on_broken

    def start(self) -> None:
        try:
            super().start()
        except Exception as e:
            log.critical("the worker ends: %s", why_it_ends(self.app, e))
            self.on_broken()
            raise WorkerShutdown(EXIT_BROKER) from e

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        if isinstance(exc, self.channel_errors):  # a refusal of Redis
            if not refuses_writes(exc):
                raise exc
            time.sleep(1.0)
            # Celery logs its type and text
            exc = ConnectionError(f"the broker takes no writes: {exc}")
        super().on_connection_error_after_connected(exc)

    def on_ready(self) -> None:
        self.event_dispatcher.buffer_limit = 240  # more do not wait for the second to end
        super().on_ready()

    def on_send_event_buffered(self) -> None:
        """See Celery, which sends a message for nearly every event. Here the event only wakes the
        loop: a slot may be free.
        """
        self.call_soon(_nothing)

    def send_events(self) -> None:
        if self.event_dispatcher:
            self.event_dispatcher.flush(errors=False)

    def shutdown(self) -> None:
        self.send_events()
        super().shutdown()


class Worker(celery_worker.Worker):  # type: ignore[misc]
    def install_platform_tweaks(self, worker: Any) -> None:
        """Nothing: Shutdown handles the signals."""


class LoopClock:
    """Watches Celery's event loop: a main thread that waits for ever takes no messages, while all
    other threads of the worker are well. The loop counts as alive while the worker starts.
    """

    def __init__(self) -> None:
        self._ticked = time.monotonic()

    def start(self, timer: Any) -> None:
        """Tick from now on, by this timer of Celery's loop. It goes on after lost connections."""
        timer.call_repeatedly(1.0, self._tick)

    def is_alive(self) -> bool:
        return time.monotonic() - self._ticked < STUCK_S

    def _tick(self) -> None:
        self._ticked = time.monotonic()


def make_app(settings: Settings, runner: JobRunner) -> celery.Celery:
    """Raises SettingsError for an address that cannot be a broker's."""
    app = bare_app(settings)

    def play(
        task: Any,
        job_id: object = None,
        *_: object,
        **__: object,
    ) -> None:
        # None when another message with the same id has just ended
        running = state.requests.get(task.request.id)
        events = TaskEvents(running.send_event if running else _nothing)
        # run() ignores texts that are not job ids
        outcome = events.ended(runner.run(str(job_id), events.began))
        if running:
            running.outcome = outcome

    app.task(play, name=TASK, bind=True, Request=Request)
    return app


def _nothing(*_: object, **__: object) -> None:
    pass


def bare_app(settings: Settings) -> celery.Celery:
    """A worker's app without its task. Raises SettingsError for an address that cannot be a
    broker's.
    """
    app = celery.Celery("rollq", amqp=Amqp, set_as_current=False)
    app.conf.update(CONFIG | broker_settings(settings.broker_url, **TRANSPORT_OPTIONS))
    app.amqp.queues.select(map(celery_queue, settings.queues))
    return app


def check_broker(app: celery.Celery) -> None:
    """Checks that the broker can be used now. Later a worker waits for it. Raises SettingsError,
    RollqError.
    """
    url = mask_url(app.conf.broker_url)
    try:
        with app.connection_for_write(connect_timeout=BROKER_TIMEOUT_S) as connection:
            connection.ensure_connection(max_retries=1, timeout=BROKER_TIMEOUT_S)
            channel = connection.default_channel
            queues = app.amqp.queues.consume_from
            misplaced: list[str] = []
            for name in queues:
                misplaced += misplaced_keys(channel, name)
            if not misplaced:
                for queue in queues.values():
                    queue.bind(channel).declare()
    except KeyError as e:
        raise SettingsError(f"ROLLQ_BROKER_URL: {url}: {e.args[0]} (redis:// or rediss://)") from e
    except Exception as e:  # kombu's transports raise anything; the text may hold a password
        if refuses_writes(e):
            raise translated(e, f"the broker at {url}") from e
        why = f"{type(e).__name__}: {mask_url(str(e))}"
        raise RollqError(f"no broker at {url}: {why} (ROLLQ_BROKER_URL, or --broker URL)") from e
    if misplaced:
        raise RollqError(f"the broker at {url}: {', '.join(misplaced)}. {KEY_REMEDY}")


def misplaced_keys(channel: Any, queue: str) -> list[str]:
    """The keys of a queue at the broker that another program has overwritten, with their types."""
    lists = [f"{queue}{channel.sep}{step}" if step else queue for step in channel.priority_steps]
    sets = [channel.keyprefix_queue % queue, channel.keyprefix_binding_permanent % queue]
    kinds = [(key, "list") for key in lists] + [(key, "set") for key in sets]
    misplaced = []
    for key, kind in kinds:
        actual = channel.client.type(key).decode()
        if actual not in (kind, "none"):
            misplaced.append(f"{key!r} is a {actual} where a {kind} belongs")
    return misplaced


def why_it_ends(app: celery.Celery, error: Exception) -> str:
    """Message of a worker that its broker has ended, with the remedy."""
    try:
        check_broker(app)
    except RollqError as e:
        return str(e)
    queues = ", ".join(app.amqp.queues.consume_from)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
    return (
        f"queues {queues}: {type(error).__name__}: {str(error)[:200]} ({where}). {MESSAGE_REMEDY}"
    )


def make_worker(
    app: celery.Celery,
    settings: Settings,
    name: str,
    on_ready: Callable[[Any], object],
    on_broken: Callable[[], object],
) -> Any:
    """`on_ready` gets Celery's consumer once it takes messages; `on_broken` is called when it ends
    by itself, also because `on_ready` failed.
    """

    def ready(sender: Any, **_: object) -> None:
        signals.worker_ready.disconnect(ready)  # Celery sends it again after every lost connection
        sender.timer.call_repeatedly(1.0, sender.send_events)
        try:
            on_ready(sender)
        except Exception as e:  # Celery would log it and take messages all the same
            log.critical("the worker ends: %s: %s", type(e).__name__, e)
            on_broken()
            raise WorkerShutdown(EXIT_BROKER) from e

    # of pickles, as root; only JSON is accepted
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.after_setup_logger.connect(clean_log, weak=False)
    signals.worker_ready.connect(ready, weak=False)
    return Worker(
        app=app,
        hostname=name,
        pool="threads",
        concurrency=settings.concurrency,
        loglevel="WARNING",
        without_mingle=True,
        without_gossip=True,
        task_events=True,
        heartbeat_interval=3.0,  # for Flower a worker is offline after two that it missed
        consumer_cls=partial(Consumer, on_broken=on_broken),
        quiet=True,
    )


def clean_log(logger: logging.Logger, **_: object) -> None:
    """Escape control characters in logs, and keep each message in a line of its own: failures quote
    words of models and tools.

    Lost connections have no traceback: there would be one for each message that Celery and kombu
    cannot acknowledge.
    """
    for handler in logger.handlers:
        handler.setFormatter(_Cleaned(handler.formatter or logging.Formatter()))


class _Cleaned(logging.Formatter):
    """Formats cleaned words as another formatter does, whose own colours stay."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self.inner = inner

    def format(self, record: logging.LogRecord) -> str:
        shown = copy(record)  # other handlers get it as it was
        shown.msg = clean(record.getMessage()).rstrip("\n").replace("\n", "\\n")
        shown.args = None
        shown.exc_info = shown.exc_text = None
        if record.exc_info and not isinstance(record.exc_info[1], CONNECTION_ERRORS):
            # Its lines are indented, so that none of them looks like a message.
            shown.exc_text = indent(clean(self.inner.formatException(record.exc_info)), "  ")
        return self.inner.format(shown)


def stop_consuming() -> None:
    """Asks Celery's consumer to stop at its next tick. Jobs that run in the pool end by
    themselves.
    """
    state.should_stop = os.EX_OK
