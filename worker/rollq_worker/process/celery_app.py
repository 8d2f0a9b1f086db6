"""The worker process: Celery distributes and runs, the ledger decides.

The only module that knows Celery. A message carries a job id and nothing else; it is acknowledged early, because the
ledger brings back what a dead worker held. The threads pool runs hundreds of episodes in one process: they wait for the
engine nearly all the time.
"""

import logging
import os
import socket
import threading
import time
import warnings
from typing import Any

import celery
from celery import signals
from celery.exceptions import SecurityWarning
from celery.worker import state
from kombu.transport import TRANSPORT_ALIASES

from rollq.client.celery_publisher import TASK, Publisher, verified
from rollq.errors import RollqError, SettingsError
from rollq.ledger.connection import CONNECTION_ERRORS, connect
from rollq.ledger.keys import QUEUE
from rollq.ledger.lock import RedisLock
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.engine.hang_watch import EngineWatch
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.engine.tokenizer_check import PROBE
from rollq_worker.process import freeze_watchdog, startup_checks
from rollq_worker.process.job_task import Player
from rollq_worker.process.leases import release_all
from rollq_worker.process.reaper import Reaper
from rollq_worker.process.shutdown import Drain
from rollq_worker.tokens.tokenizer import load_tokenizer

log = logging.getLogger("rollq.worker")

ABORT_S = 1.5
"""For so long a worker that drains waits for the engine to hand out what it has."""
REACH_S = 3.0
"""For so long a broker may take to answer when the worker starts."""
CRIPPLED = 75
"""Exit code (EX_TEMPFAIL) of a worker that has lost most of its slots to code that does not end: start it again."""

CONFIG = {
    "task_default_queue": QUEUE,
    "task_serializer": "json",
    "accept_content": ["json"],
    "task_ignore_result": True,
    "task_store_errors_even_if_ignored": False,
    "task_acks_late": False,  # the ledger redelivers; a late ack on Redis loses messages all the same
    "worker_cancel_long_running_tasks_on_connection_loss": True,  # those of late acks: none; unset, it warns each time
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,  # a message waits in the broker, where any worker can take it, not in this process
    "worker_send_task_events": True,
    "task_send_sent_event": True,
    "worker_redirect_stdouts": False,
    "worker_hijack_root_logger": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_channel_error_retry": True,  # a Redis that takes no writes, for one: Celery's own answer is to end
}


def main(settings: Settings) -> int:
    """Run a worker in the foreground until a signal stops it. Returns the exit code.

    Raises SettingsError for a setting that cannot be, RollqError when Redis or the broker cannot be used.
    """
    name = f"rollq@{socket.gethostname()}-{os.getpid()}"
    drain = Drain(threading.Event())
    drain.install()
    tokenizer = load_tokenizer(settings.tokenizer)
    connection = connect(settings.redis_url, max_connections=settings.concurrency + 50)
    startup_checks.check(settings, connection)
    engine = SGLangEngine(
        settings.engine_url,
        concurrency=settings.concurrency,
        stop_ids=startup_checks.stop_ids(tokenizer),
        vocab_size=tokenizer.vocab_size,
        turn=RedisLock(connection, settings.engine_url),
        spelling=tokenizer.encode(PROBE),
    )
    player = Player(settings, connection, engine, tokenizer, name, drain.draining)
    player.isolation.start()
    player.crippled = lambda: drain.begin(CRIPPLED)
    reaper = Reaper(connection, Publisher(settings.broker_url), settings.alive_file)
    app = make_app(settings, player)
    reach_broker(app, settings.broker_url)
    worker = make_worker(app, settings, name)

    def on_ready(**_: object) -> None:
        signals.worker_ready.disconnect(on_ready)  # Celery says so again after every lost connection
        drain.ready(
            stop_consuming=stop_consuming,
            interrupt=lambda: interrupt(engine),
            release=lambda: leave(player, reaper),
        )
        freeze_watchdog.watch()
        for thread in (player.leases, reaper, EngineWatch(engine)):
            thread.start()
        where = f"redis {mask_url(settings.redis_url)}, engine {mask_url(settings.engine_url)}"
        print(f"rollq worker {name}: ready, {settings.concurrency} episodes at once, {where}", flush=True)

    startup_checks.look_at(engine, settings.engine_url, tokenizer.name)
    signals.worker_ready.connect(on_ready, weak=False)
    worker.start()
    leave(player, reaper)
    return drain.exit_code or int(worker.exitcode or 0)


def make_app(settings: Settings, player: Player) -> celery.Celery:
    """The Celery app with its one task."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = "rollq_worker.process.kombu_transport:Transport"
    app = celery.Celery("rollq", broker=verified(settings.broker_url), set_as_current=False)
    app.conf.update(CONFIG)

    def play(job_id: object = None, *_: object, **__: object) -> dict[str, Any]:
        return player.play(str(job_id))  # whatever the message carries: what is no job id is ignored there

    app.task(play, name=TASK)
    return app


def reach_broker(app: celery.Celery, url: str) -> None:
    """Once, and quickly: a worker that runs waits for a broker that is away. Raises SettingsError, RollqError."""
    try:
        with app.connection_for_write(connect_timeout=REACH_S) as connection:
            connection.ensure_connection(max_retries=1, timeout=REACH_S)
            app.amqp.queues[QUEUE].bind(connection.default_channel).declare()
    except KeyError as e:
        raise SettingsError(f"ROLLQ_BROKER_URL: {mask_url(url)}: {e.args[0]} (redis:// or rediss://)") from e
    except Exception as e:  # the boundary to kombu and whatever transport there is; its text may hold a password
        why = f"{type(e).__name__}: {mask_url(str(e))}"
        raise RollqError(f"no broker at {mask_url(url)}: {why} (ROLLQ_BROKER_URL, or --broker URL)") from e


def make_worker(app: celery.Celery, settings: Settings, name: str) -> Any:
    warnings.filterwarnings("ignore", category=SecurityWarning)  # as root, it warns of pickles: JSON alone is taken
    signals.after_setup_logger.connect(say_outages_shortly, weak=False)
    worker = app.Worker(
        hostname=name,
        pool="threads",
        concurrency=settings.concurrency,
        queues=[QUEUE],
        loglevel="WARNING",
        without_mingle=True,
        without_gossip=True,
        task_events=True,
        quiet=True,
    )
    worker.install_platform_tweaks = lambda worker: None  # its signal handlers; ours are there already
    return worker


def say_outages_shortly(logger: logging.Logger, **_: object) -> None:
    """Celery and kombu show a traceback for every message that a lost connection keeps them from acknowledging."""

    def shorten(record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], CONNECTION_ERRORS):
            record.exc_info = record.exc_text = None
        return True

    for handler in logger.handlers:
        handler.addFilter(shorten)


def stop_consuming() -> None:
    """Ask Celery's consumer to stop at its next tick; what runs in the pool ends by itself."""
    state.should_stop = os.EX_OK


def interrupt(engine: SGLangEngine) -> None:
    """End what the episodes wait for on the engine, with their partial tokens if it lets us have them."""
    until = time.monotonic() + ABORT_S
    # Again and again: a request that was just being sent is missed the first time.
    while engine.abort_running() and time.monotonic() < until:
        time.sleep(0.1)
    while engine.cut():  # behind a router without aborts the turn in flight is dropped
        time.sleep(0.1)


def leave(player: Player, reaper: Reaper) -> None:
    """Release what is still held and publish it again at once, so that the jobs go on elsewhere."""
    released = release_all(player.leases)
    reaper.stop()
    reaper.join(0.5)
    reaper.tick()
    player.leases.stop()
    if released:
        log.warning("released %d jobs that did not stop by themselves", released)
