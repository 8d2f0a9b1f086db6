"""`rollq engines`: the lists of engines that workers with `--engine redis:NAME` use, and the
weights of engines.
"""

import argparse

from rollq.commands import weights
from rollq.commands.connect import open_redis
from rollq.commands.flags.parser import Commands, Parser
from rollq.commands.flags.shared import add_redis
from rollq.commands.flags.types import http_url, name
from rollq.ledger.workers.engine_addresses import add_address, read_addresses, remove_address
from rollq.urls import mask_url


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "engines",
        description="Edits the lists of engines in Redis that workers started with --engine "
        "redis:NAME use, loads new weights into engines, and says which step's policy they serve.",
    )
    kinds = parser.add_commands(title="commands")
    _add(kinds, "list", "print the engines of a list", "Prints the engines of a list.")
    _add(
        kinds,
        "add",
        "add engines to a list",
        "Adds engines to a list. Workers notice within seconds.",
    )
    _add(
        kinds,
        "remove",
        "remove engines from a list",
        "Removes engines from a list. Workers notice within seconds: a removed engine gets no new "
        "requests, and those in flight are finished.",
    )
    weights.add(kinds)


def _add(commands: Commands, command: str, help: str, description: str) -> None:
    parser: Parser = commands.add_parser(command, help=help, description=description)
    parser.add_argument("name", type=name, metavar="NAME", help="name of the list")
    if command != "list":
        parser.add_argument("urls", type=http_url, nargs="+", metavar="URL")
    add_redis(parser)
    parser.set_defaults(
        run=run, urls=[], edit={"add": add_address, "remove": remove_address}.get(command)
    )


def run(args: argparse.Namespace) -> int:
    with open_redis(args) as redis:
        for url in args.urls:
            args.edit(redis, args.name, url)
        for url in read_addresses(redis, args.name):
            print(mask_url(url))
    return 0
