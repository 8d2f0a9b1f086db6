"""`rollq worker`: one worker process in the foreground; it plays rollouts until told to stop."""

import argparse
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rollq.commands.connect import ping_redis, settings
from rollq.commands.flags.shared import (
    Commands,
    add_broker,
    add_engines,
    add_redis,
    add_template,
    add_tokenizer,
    environment,
    name,
    whole,
)
from rollq.extras import needs


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "worker",
        description="Plays rollouts until it is stopped. SIGTERM or Ctrl-C stops each episode at its next turn, and"
        " other workers continue it. Start as many workers as you like, on any machines.",
    )
    parser.add_argument(
        "-c", "--concurrency", type=whole(1), metavar="N", help="episodes at a time (ROLLQ_CONCURRENCY, else 64)"
    )
    parser.add_argument(
        "--queues",
        type=queue_names,
        metavar="A,B",
        help="take jobs from these queues only, as `rollq submit --queue` names them (ROLLQ_QUEUES, else rollq)",
    )
    parser.add_argument(
        "--env",
        action="append",
        type=environment_file,
        metavar="FILE.py:FUNCTION",
        help="a file with an environment that jobs may name; may be repeated (ROLLQ_ENV_FILES, with commas)",
    )
    add_redis(parser)
    add_broker(parser)
    add_engines(parser, ", else http://127.0.0.1:30000")
    add_tokenizer(parser)
    add_template(parser)
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="write where the CPU time goes, for speedscope.app, when the worker stops (py-spy, where it is installed)",
    )
    parser.set_defaults(run=run)


def queue_names(text: str) -> tuple[str, ...]:
    """An argument type: `A,B`, each a queue's name."""
    return tuple(name(queue.strip()) for queue in text.split(","))


def environment_file(text: str) -> str:
    """An argument type: a file of an environment, `game.py:load`, which becomes its name."""
    if (name := environment(text)) == text:
        raise argparse.ArgumentTypeError(
            f"expected a file, as in game.py:load, not {text!r}: a worker plays every installed environment"
        )
    return name


def run(args: argparse.Namespace) -> int:
    with needs("worker"):
        from rollq_worker.process import celery_app
        from rollq_worker.process.profile import profiling
    found = settings(args)
    ping_redis(found.redis_url)
    with profiling(args.profile, partial(print, flush=True)) if args.profile else nullcontext():
        code = celery_app.main(found)
    # Daemon threads may be logging. Then an exiting interpreter would find its streams locked, and abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
