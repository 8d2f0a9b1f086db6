"""The worker process: Celery distributes the jobs, the ledger decides who plays them.

A message carries a job id and nothing else. It is acknowledged early,
because the ledger brings back the jobs of a dead worker. The threads pool runs hundreds of episodes in one process,
because they wait for the engine nearly all the time.
"""

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import celery
from celery import signals
from celery.exceptions import SecurityWarning
from celery.worker import consumer, request, state
from kombu.asynchronous import get_event_loop, set_event_loop

from rollq.client.celery_publisher import TASK, Publisher, broker_settings
from rollq.errors import RollqError, SettingsError
from rollq.ledger.keys import QUEUE, celery_queue
from rollq.ledger.workers.lock import RedisLock
from rollq.servers.connection import CONNECTION_ERRORS, connect
from rollq.servers.refusal import refuses_writes, translated
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.process import freeze_watchdog, kombu_transport, memory, startup_checks
from rollq_worker.process.engine_list import EngineList
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.loop_clock import LoopClock
from rollq_worker.process.monitoring.description import Description
from rollq_worker.process.monitoring.task_events import STARTED, TOLD, TaskEvents
from rollq_worker.process.reaper import PATIENCE_S, Reaper
from rollq_worker.process.shutdown import Shutdown
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger("rollq.worker")

ABORT_WAIT_S = 1.5
"""Seconds that a stopping worker waits for the engine to return partial generations."""
BROKER_TIMEOUT_S = 3.0
"""Seconds to wait for the broker's first answer when the worker starts."""
HEARTBEAT_S = 3.0
"""Seconds between two events of a worker that say that it is there. A Flower that has just started shows no worker
before, and for Flower a worker is offline after two missed."""
EVENTS_S = 1.0
"""Seconds between two messages with the events of tasks, for Flower. Celery would send one at nearly every event."""
MOST_EVENTS = 240
"""Number of events after which a message does not wait for the second to end. With Celery's 24, short jobs in a busy
worker would cost twice as much an event."""
SLOTS_LOST = 75
"""Exit code (EX_TEMPFAIL) of a worker that lost most of its slots to code that does not end. Start it again."""

CONFIG = {
    "task_default_queue": QUEUE,
    "task_serializer": "json",
    "accept_content": ["json"],
    "task_ignore_result": True,
    "task_store_errors_even_if_ignored": False,
    "task_acks_late": False,  # the ledger redelivers; a late ack on Redis loses messages all the same
    "worker_cancel_long_running_tasks_on_connection_loss": True,  # with early acks there are none; unset, it warns
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,  # a message waits in the broker, where any worker can take it
    "worker_enable_remote_control": False,  # any client could set a rate limit, which stalls the run
    "worker_disable_rate_limits": True,
    "worker_send_task_events": True,
    "task_send_sent_event": True,
    "worker_redirect_stdouts": False,
    "worker_hijack_root_logger": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_channel_error_retry": True,  # when Redis takes no writes, for one; by default Celery ends
}


def main(settings: Settings, watchers: Iterable[Callable[[JobRunner], object]] = ()) -> int:
    """Run a worker in the foreground until a signal stops it. Returns the exit code. The `watchers` are told what runs
    its jobs, before there are any.

    Raises SettingsError for a wrong setting, RollqError when Redis or the broker cannot be used.
    """
    memory.use_one_arena()
    name = f"rollq@{socket.gethostname()}-{os.getpid()}"
    shutdown = Shutdown(threading.Event())
    shutdown.install()
    tokenizer = load_tokenizer(settings.tokenizer, settings.template)
    connection = connect(settings.redis_url, max_connections=settings.concurrency + 50)
    startup_checks.check(settings, connection)
    engine_list = EngineList(settings.engine_urls, connection)
    engine = make_engine(settings, connection, tokenizer, engine_list.read())
    on_slots_lost = partial(shutdown.request, SLOTS_LOST)
    runner = JobRunner(settings, connection, engine, tokenizer, name, shutdown.draining, on_slots_lost)
    for watch in watchers:
        watch(runner)
    runner.episodes.isolation.start()
    clock = LoopClock()

    impatient, publisher = connect(settings.redis_url, patience_s=PATIENCE_S), Publisher(settings.broker_url)
    reaper = Reaper(impatient, publisher, Description(runner, engine), settings.alive_file, clock.is_alive)
    app = make_app(settings, runner)
    check_broker(app, settings)
    worker = make_worker(app, settings, name)
    runner.misfits.on_rest = partial(take_no_more, worker)

    def on_ready(sender: Any, **_: object) -> None:
        signals.worker_ready.disconnect(on_ready)  # Celery sends it again after every lost connection
        clock.start(sender.hub)
        shutdown.ready(
            stop_consuming=stop_consuming,
            end_engine_waits=lambda: end_engine_waits(engine),
            release=lambda: release(runner, reaper),
        )
        freeze_watchdog.start()
        engine.watch()
        engine_list.watch(engine.update)
        for thread in (runner.leases, runner.time_spent, reaper):
            thread.start()
        engines = ", ".join(map(mask_url, settings.engine_urls))
        addresses = f"redis {mask_url(settings.redis_url)}, engine {engines}"
        takes = f"{settings.concurrency} episodes at once, queues {','.join(settings.queues)}"
        print(f"rollq worker {name}: ready, {takes}, {addresses}", flush=True)

    startup_checks.check_engines(engine.engines, tokenizer.name)
    signals.worker_ready.connect(on_ready, weak=False)
    memory.settle()
    worker.start()
    release(runner, reaper)
    return shutdown.exit_code or int(worker.exitcode or 0)


def make_engine(settings: Settings, connection: Any, tokenizer: Tokenizer, urls: Collection[str]) -> EnginePool:
    return EnginePool(
        urls,
        stop_ids=startup_checks.stop_ids(tokenizer),
        vocab_size=tokenizer.vocab_size,
        suspect_lock=partial(RedisLock, connection),
        proof=VocabularyProof(tokenizer),
    )


def make_app(settings: Settings, runner: JobRunner) -> celery.Celery:
    """Raises SettingsError for an address that cannot be a broker's."""
    app = bare_app(settings.broker_url)

    def play(task: Any, job_id: object = None, *_: object, **__: object) -> None:
        told = state.requests.get(task.request.id)  # None when another message with the same id has just ended
        events = TaskEvents(told.tell if told else _nothing)
        events.ended(runner.run(str(job_id), events.began))  # run() ignores texts that are no job id

    app.task(play, name=TASK, bind=True, Request=Request)
    return app


def bare_app(broker_url: str) -> celery.Celery:
    """A worker's app without its task. Raises SettingsError for an address that cannot be a broker's."""
    kombu_transport.install()
    app = celery.Celery("rollq", set_as_current=False)
    app.conf.update(CONFIG | broker_settings(broker_url, **kombu_transport.OPTIONS))
    app.amqp.Connection = kombu_transport.Connection
    return app


def check_broker(app: celery.Celery, settings: Settings) -> None:
    """Check that the broker can be used now. Later a worker waits for it. Raises SettingsError, RollqError."""
    url = settings.broker_url
    try:
        with app.connection_for_write(connect_timeout=BROKER_TIMEOUT_S) as connection:
            connection.ensure_connection(max_retries=1, timeout=BROKER_TIMEOUT_S)
            for queue in settings.queues:
                app.amqp.queues[celery_queue(queue)].bind(connection.default_channel).declare()
    except KeyError as e:
        raise SettingsError(f"ROLLQ_BROKER_URL: {mask_url(url)}: {e.args[0]} (redis:// or rediss://)") from e
    except Exception as e:  # kombu's transports raise anything; the text may hold a password
        if refuses_writes(e):
            raise translated(e, f"the broker at {mask_url(url)}") from e
        why = f"{type(e).__name__}: {mask_url(str(e))}"
        raise RollqError(f"no broker at {mask_url(url)}: {why} (ROLLQ_BROKER_URL, or --broker URL)") from e


def make_worker(app: celery.Celery, settings: Settings, name: str) -> Any:
    warnings.filterwarnings("ignore", category=SecurityWarning)  # of pickles, as root; only JSON is accepted
    signals.after_setup_logger.connect(shorten_outages, weak=False)
    worker = app.Worker(
        hostname=name,
        pool="threads",
        concurrency=settings.concurrency,
        queues=[celery_queue(queue) for queue in settings.queues],
        loglevel="WARNING",
        without_mingle=True,
        without_gossip=True,
        task_events=True,
        heartbeat_interval=HEARTBEAT_S,
        consumer_cls=Consumer,
        quiet=True,
    )
    worker.install_platform_tweaks = lambda worker: None  # Shutdown handles the signals
    return worker


class Request(request.Request):  # type: ignore[misc]
    """Celery's request of a task, for which `play` says itself when its job began and how it ended."""

    def send_event(self, type: str, **fields: object) -> None:
        """See Celery, for which a task begins with its message and succeeds whatever became of its job."""
        if type not in TOLD:
            self.tell(type, **fields)
        loop: Any = get_event_loop()
        if type != STARTED and loop:  # Celery has just freed the job's slot
            loop.call_soon(_nothing)

    def tell(self, type: str, **fields: object) -> None:
        super().send_event(type, **fields)


class Consumer(consumer.Consumer):  # type: ignore[misc]
    """Celery's consumer, without its cost for each message of what serves no purpose here."""

    def register_with_event_loop(self, hub: Any) -> None:
        """See Celery. It comes again after every lost connection, with which Celery ends the timer and forgets the
        loop."""
        super().register_with_event_loop(hub)
        set_event_loop(hub)
        if self.event_dispatcher:
            self.event_dispatcher.buffer_limit = MOST_EVENTS
        hub.call_repeatedly(EVENTS_S, self._send_events)

    def on_send_event_buffered(self) -> None:
        """Celery wakes the loop here for each event. `_send_events` sends them, and `Request` wakes the loop."""

    def call_soon_ack(self, acknowledge: Callable[..., None], *args: Any, **options: Any) -> None:
        """Acknowledge at once, in this thread: with early acknowledgements nothing is sent."""
        acknowledge(*args, **options)

    def shutdown(self) -> None:
        """See Celery. The last events go out."""
        self._send_events()
        super().shutdown()

    def _send_events(self) -> None:
        # Those that could not be sent wait for the next connection: a try each second would hold up the loop.
        if self.event_dispatcher:
            self.event_dispatcher.flush(errors=False)


def _nothing(*_: object, **__: object) -> None:
    pass


def shorten_outages(logger: logging.Logger, **_: object) -> None:
    """Log lost connections without a traceback. Celery and kombu would log one for every message they cannot
    acknowledge."""

    def shorten(record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], CONNECTION_ERRORS):
            record.exc_info = record.exc_text = None
        return True

    for handler in logger.handlers:
        handler.addFilter(shorten)


def stop_consuming() -> None:
    """Ask Celery's consumer to stop at its next tick. Jobs that run in the pool end by themselves."""
    state.should_stop = os.EX_OK


def take_no_more(worker: Any, rests: bool) -> None:
    """While the worker rests, Celery takes no message beyond those that it has: at least the one whose slot rests."""
    worker.max_concurrency = 1 if rests else None


def end_engine_waits(engine: EnginePool) -> None:
    """End the episodes' waits for the engine. They get their partial tokens where the engine returns them."""
    until = time.monotonic() + ABORT_WAIT_S
    # Repeated, because an abort misses a request that is just being sent.
    while engine.abort_running() and time.monotonic() < until:
        time.sleep(0.1)
    while engine.cut():  # a router passes no aborts on: the turn in flight is dropped
        time.sleep(0.1)


def release(runner: JobRunner, reaper: Reaper) -> None:
    """Release the jobs that are still held and publish them again, so that other workers go on with them at once. Then
    this worker is gone for the others."""
    released = runner.leases.release_all()
    reaper.stop()
    reaper.join(0.5)
    reaper.tick()
    reaper.leave()
    runner.leases.stop()
    runner.time_spent.stop()
    if released:
        log.warning("released %d jobs that did not stop by themselves", released)
