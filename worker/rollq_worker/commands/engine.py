"""`rollq engine`: the replay engine in the foreground, an SGLang server without a model."""

import argparse

from rollq.commands.connect import settings
from rollq.commands.flags.files import environment
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_tokenizer
from rollq.commands.flags.types import integer, number
from rollq.errors import SettingsError
from rollq.pip_extras import needs
from rollq.processes.embedded_redis import port_taken
from rollq_worker.commands.environment_names import load_domain


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "engine",
        description="Serves SGLang's HTTP API and plays the ground truth of the environment's "
        "tasks, to try rollq and to test. It recognizes a task by the text of the conversation.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port",
        type=integer(0, 65535),
        default=30000,
        help="port to listen on; 0: any free one (%(default)s)",
    )
    parser.add_argument(
        "--env",
        type=environments,
        default="shop",
        metavar="NAMES",
        help="environments whose tasks it plays, with commas, or all; files too: game.py:load "
        "(%(default)s)",
    )
    parser.add_argument(
        "--latency",
        type=number(0),
        default=0.0,
        metavar="MEAN_S",
        help="mean seconds of one generation (%(default)s)",
    )
    parser.add_argument(
        "--mistakes",
        type=number(0, 1),
        default=0.0,
        metavar="P",
        help="probability that an episode goes wrong (%(default)s)",
    )
    parser.add_argument(
        "--errors",
        type=number(0, 1),
        default=0.0,
        metavar="P",
        help="probability that a request fails (%(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=integer(0),
        default=0,
        help="seed of mistakes, errors and latency (%(default)s)",
    )
    add_tokenizer(parser)
    parser.set_defaults(run=run)


def environments(text: str) -> str:
    """An argument type: names and files of environments, which becomes names alone."""
    return ",".join(environment(name.strip()) for name in text.split(","))


def run(args: argparse.Namespace) -> int:
    with needs("engine"):
        from rollq_worker.replay_engine import server
    for name in args.env.split(",") if args.env != "all" else ():
        load_domain(name, "engine")
    if port_taken(args.port, args.host):
        raise SettingsError(f"port {args.port} of {args.host} is in use; choose another --port")
    models = settings(args)
    server.serve(
        host=args.host,
        port=args.port,
        env=args.env,
        latency=args.latency,
        mistakes=args.mistakes,
        errors=args.errors,
        seed=args.seed,
        tokenizer=models.tokenizer,
        template=models.template,
    )
    return 0
