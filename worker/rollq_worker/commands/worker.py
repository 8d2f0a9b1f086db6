"""`rollq worker`: plays rollouts in the foreground until told to stop, in one or more processes."""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rollq.commands.connect import ping_redis, settings
from rollq.commands.flags.files import agent, environment
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import (
    add_broker,
    add_engines,
    add_redis,
    add_template,
    add_tokenizer,
)
from rollq.commands.flags.types import integer, listen_address, name
from rollq.errors import SettingsError
from rollq.pip_extras import needs
from rollq.settings import processes

if TYPE_CHECKING:
    from rollq_worker.process.job_task import JobRunner


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "worker",
        description="Plays rollouts until it is stopped. SIGTERM or Ctrl-C stops each episode at "
        "its next turn, and other workers continue it. Start as many workers as you like, on any "
        "machines.",
    )
    parser.add_argument(
        "-c",
        "--concurrency",
        type=integer(1),
        metavar="N",
        help="episodes at a time in each process (ROLLQ_CONCURRENCY, else 64)",
    )
    parser.add_argument(
        "--processes",
        type=process_count,
        metavar="N",
        help="worker processes, which share the memory of what is loaded; one that dies is started "
        "again; auto: as many as there are cores (ROLLQ_PROCESSES, else 1)",
    )
    parser.add_argument(
        "--queues",
        type=queue_names,
        metavar="A,B",
        help="take jobs from these queues only, as jobs name them (ROLLQ_QUEUES, else rollq)",
    )
    parser.add_argument(
        "--env",
        action="append",
        type=environment_file,
        metavar="FILE",
        help="a file with an environment that jobs may name: FILE.py:FUNCTION, or a dataset, "
        "FILE.jsonl:GRADER; may be repeated (ROLLQ_ENV_FILES, with commas)",
    )
    parser.add_argument(
        "--agent",
        action="append",
        type=agent_file,
        metavar="FILE.py:FUNCTION",
        help="a file with an agent program that jobs may name: FILE.py:FUNCTION, or a command, "
        "FILE.sh; may be repeated (ROLLQ_AGENT_FILES, with commas)",
    )
    add_redis(parser)
    add_broker(parser)
    add_engines(parser)
    add_tokenizer(parser)
    add_template(parser)
    parser.add_argument(
        "--metrics",
        type=listen_address,
        metavar="[HOST:]PORT",
        help="serve this process's metrics to Prometheus there, at 127.0.0.1 unless told "
        "otherwise; port 0: a free one; further processes take the next ports (docs/metrics.md)",
    )
    parser.set_defaults(run=run)


def process_count(text: str) -> int:
    """An argument type: a number of processes, or `auto`."""
    try:
        return processes(text)
    except SettingsError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def queue_names(text: str) -> tuple[str, ...]:
    """An argument type: `A,B`, each a queue's name."""
    return tuple(name(queue.strip()) for queue in text.split(","))


def environment_file(text: str) -> str:
    """An argument type: a file of an environment, `game.py:load`, which becomes its name."""
    name = environment(text)
    if name == text:
        raise argparse.ArgumentTypeError(
            f"expected a file, as in game.py:load, not {text!r}: a worker plays every installed "
            "environment"
        )
    return name


def agent_file(text: str) -> str:
    """An argument type: a file of an agent program, `solver.py:play` or `agent.sh`, which becomes
    its name.
    """
    name = agent(text)
    if name == text or "@" not in name:
        raise argparse.ArgumentTypeError(
            f"expected a file, as in solver.py:play, not {text!r}: a worker plays every installed "
            "agent"
        )
    return name


def run(args: argparse.Namespace) -> int:
    with needs("worker"):
        from rollq_worker.process import main, secrecy
    of_worker = settings(args)
    secrecy.hide_addresses()
    secrecy.hide_memory()
    ping_redis(of_worker.redis_url)
    number = 0
    tokenizer = None
    if of_worker.processes > 1:
        number, of_worker, tokenizer = main.fork(of_worker)
    code = main.main(of_worker, _serve_metrics(args, number), tokenizer)
    # Daemon threads may be logging. Then an exiting interpreter would find its streams locked, and
    # abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve_metrics(args: argparse.Namespace, number: int) -> "Callable[[JobRunner], object]":
    """Starts the metrics server of --metrics. Returns the call that adds a runner's metrics."""
    if args.metrics is None:
        return lambda runner: None
    with needs("metrics"):
        from rollq.metrics.exposition import Exposition
        from rollq_worker.process.monitoring.metrics import worker_metrics
    exposition = Exposition()
    host, port = args.metrics
    address = exposition.serve(host, port + number if port else 0)
    print(f"rollq worker: metrics at {address}", flush=True)

    def serve(runner: "JobRunner") -> None:
        exposition.read = partial(worker_metrics, runner)

    return serve
