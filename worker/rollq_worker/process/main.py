"""The worker process: it puts its parts together, plays until a signal stops it, and gives its jobs
back.

The threads pool of Celery runs hundreds of episodes in one process, because they wait for the
engine nearly all the time.
"""

import logging
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from rollq.client.producing.broker import Broker
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.agents.programs.users import agent_users
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.process import celery_app, memory, startup_checks
from rollq_worker.process.engine_list import EngineList
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.monitoring.description import Description
from rollq_worker.process.parent import Parent, own_alive_file
from rollq_worker.process.reaper import PATIENCE_S, Reaper
from rollq_worker.process.shutdown import Shutdown, end_when_frozen
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger("rollq.worker")

POLICY = ""
"""The policy, among the names of models."""


class Forked(NamedTuple):
    """One of several processes, whose parent has checked everything."""

    number: int
    """Number of the process, from 0 on. One that follows another has its number."""
    settings: Settings
    tokenizer: Tokenizer


def fork(settings: Settings) -> Forked:
    """Fork `settings.processes` workers. Returns in each of them; in the parent it raises
    SystemExit, with the exit code, when a check fails or all have ended. Raises SettingsError.
    """
    memory.use_one_arena()
    tokenizer = load_tokenizer(settings.tokenizer, settings.template)
    memory.freeze_loaded_objects()
    parent = Parent(settings.processes, settings.alive_file)
    parent.check(lambda: check(settings, tokenizer))
    number = parent.fork()
    users = agent_users()
    if users is not None:
        users.keep_share(number, settings.processes)
    if settings.alive_file is not None:
        settings = replace(settings, alive_file=own_alive_file(settings.alive_file, number))
    return Forked(number, settings, tokenizer)


def switch_interval(slots: int) -> float:
    """Seconds after which a thread that waits for the interpreter wakes, to ask for it. With
    hundreds of such threads Python's own 5 ms would cost a third of the CPU.
    """
    return min(max(0.005, slots * 50e-6), 0.05)


def main(
    settings: Settings,
    on_runner: Callable[[JobRunner], object] = lambda runner: None,
    tokenizer: Tokenizer | None = None,
) -> int:
    """Runs a worker in the foreground until a signal stops it. Returns the exit code. `on_runner`
    gets the runner of its jobs, before there are any. `tokenizer`: of a parent, which has checked
    everything.

    Raises SettingsError for a wrong setting, RollqError when Redis or the broker cannot be used.
    """
    memory.use_one_arena()
    sys.setswitchinterval(switch_interval(settings.concurrency))
    name = f"rollq@{socket.gethostname()}-{os.getpid()}"
    multiprocessing.current_process().name = name  # Celery's log begins each line with it
    shutdown = Shutdown(name, threading.Event())
    shutdown.install()
    connection = connect(settings.redis_url, max_connections=settings.concurrency + 50)
    lists = engine_lists(settings, connection)
    if tokenizer is None:
        tokenizer = load_tokenizer(settings.tokenizer, settings.template)
        pools = checked_engines(settings, connection, tokenizer, lists)
    else:
        pools = make_engines(tokenizer, lists)
        for pool in pools.values():
            pool.ask()
    engine = pools[POLICY]
    runner = JobRunner(
        settings,
        connection,
        engine,
        tokenizer,
        name,
        shutdown.draining,
        on_slots_lost=partial(shutdown.request, os.EX_TEMPFAIL),
        models={model: pool for model, pool in pools.items() if model != POLICY},
    )
    on_runner(runner)
    runner.episodes.isolation.start()
    clock = celery_app.LoopClock()

    impatient = connect(settings.redis_url, patience_s=PATIENCE_S)
    broker = Broker(settings.broker_url)
    reaper = Reaper(
        impatient, broker, Description(runner, engine), settings.alive_file, clock.is_alive
    )
    app = celery_app.make_app(settings, runner)

    def on_ready(consumer: Any) -> None:
        clock.start(consumer.timer)
        shutdown.ready(
            stop_consuming=celery_app.stop_consuming,
            end_engine_waits=lambda: end_engine_waits(list(pools.values())),
            release=lambda: release(runner, reaper),
        )
        end_when_frozen()
        for model, pool in pools.items():
            pool.watch()
            lists[model].watch(pool.update)
        for thread in (runner.leases, runner.time_spent, reaper):
            thread.start()
        engines = ", ".join(map(mask_url, settings.engine_urls))
        addresses = f"redis {mask_url(settings.redis_url)}, engine {engines}"
        takes = f"{settings.concurrency} episodes at once, queues {','.join(settings.queues)}"
        with suppress(OSError):  # who reads it may be gone
            print(f"rollq worker {name}: ready, {takes}, {addresses}", flush=True)

    on_broken = partial(shutdown.request, celery_app.EXIT_BROKER)
    worker = celery_app.make_worker(app, settings, name, on_ready, on_broken)
    memory.freeze_loaded_objects()
    worker.start()
    release(runner, reaper)
    return shutdown.exit_code or int(worker.exitcode or 0)


def check(settings: Settings, tokenizer: Tokenizer) -> None:
    """Checks what a worker needs. Raises as `main` does."""
    with connect(settings.redis_url) as connection:
        checked_engines(settings, connection, tokenizer, engine_lists(settings, connection))


def engine_lists(settings: Settings, connection: Any) -> Mapping[str, EngineList]:
    """The lists of the policy's engines and of those of each other model, by its name."""
    sources = {POLICY: settings.engine_urls, **settings.model_engines}
    return {model: EngineList(urls, connection) for model, urls in sources.items()}


def checked_engines(
    settings: Settings, connection: Any, tokenizer: Tokenizer, lists: Mapping[str, EngineList]
) -> Mapping[str, EnginePool]:
    """The engines of each model, once all is checked. Raises as `main` does."""
    startup_checks.check(settings, connection)
    pools = make_engines(tokenizer, lists)
    celery_app.check_broker(celery_app.bare_app(settings))
    for model, pool in pools.items():
        startup_checks.check_engines(pool.engines, tokenizer.name, model)
    return pools


def make_engines(tokenizer: Tokenizer, lists: Mapping[str, EngineList]) -> Mapping[str, EnginePool]:
    """The engines of each model. All of them have the policy's vocabulary."""
    options: Mapping[str, Any] = {
        "stop_ids": startup_checks.stop_ids(tokenizer),
        "vocab_size": tokenizer.vocab_size,
        "proof": VocabularyProof(tokenizer),
    }
    return {model: EnginePool(listed.read(), **options) for model, listed in lists.items()}


def end_engine_waits(pools: Sequence[EnginePool]) -> None:
    """Ends the episodes' waits for engines. They get their partial tokens where the engine returns
    them.
    """
    until = time.monotonic() + 1.5
    # Repeated, because an abort misses a request that is just being sent.
    while sum(pool.abort_running() for pool in pools) and time.monotonic() < until:
        time.sleep(0.1)
    while sum(pool.cut() for pool in pools):  # a router passes no aborts on: the turn is dropped
        time.sleep(0.1)


def release(runner: JobRunner, reaper: Reaper) -> None:
    """Releases the jobs that are still held and sends them again, so that other workers go on with
    them at once. Then this worker is gone for the others.
    """
    released = runner.leases.release_all()
    reaper.stop()
    reaper.join(0.5)
    reaper.tick()
    reaper.leave()
    runner.leases.stop()
    runner.time_spent.stop()
    if released:
        log.warning("released %d jobs that did not stop by themselves", released)
