"""`rollq worker`: one worker process in the foreground; it plays rollouts until told to stop."""

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
from rollq.pip_extras import needs

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
        help="episodes at a time (ROLLQ_CONCURRENCY, else 64)",
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
        "otherwise; port 0: a free one (docs/metrics.md)",
    )
    parser.set_defaults(run=run)


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
    code = main.main(of_worker, _serve_metrics(args))
    # Daemon threads may be logging. Then an exiting interpreter would find its streams locked, and
    # abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve_metrics(args: argparse.Namespace) -> "Callable[[JobRunner], object]":
    """With --metrics: serves metrics from now on, and those of the runner that it is told of."""
    if args.metrics is None:
        return lambda runner: None
    with needs("metrics"):
        from rollq.metrics.exposition import Exposition
        from rollq_worker.process.monitoring.metrics import worker_metrics
    exposition = Exposition()
    print(f"rollq worker: metrics at {exposition.serve(*args.metrics)}", flush=True)

    def serve(runner: "JobRunner") -> None:
        exposition.read = partial(worker_metrics, runner)

    return serve
