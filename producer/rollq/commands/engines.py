"""`rollq engines`: the list of engines that workers with `--engine redis:NAME` use."""

import argparse

from rollq.commands.connect import open_redis
from rollq.commands.flags.shared import Commands, add_redis, http_url, name
from rollq.ledger.workers.engine_addresses import add_address, read_addresses, remove_address
from rollq.urls import mask_url


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "engines",
        description="Edits and prints the engines in Redis that workers started with --engine redis:NAME use. Workers"
        " notice a change within seconds. A removed engine gets no new requests; those in flight are finished.",
    )
    parser.add_argument("--name", type=name, required=True, metavar="NAME", help="name of the list")
    parser.add_argument("--add", type=http_url, action="append", default=[], metavar="URL", help="add this engine")
    parser.add_argument("--remove", type=http_url, action="append", default=[], metavar="URL", help="remove this one")
    add_redis(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with open_redis(args) as redis:
        for url in args.add:
            add_address(redis, args.name, url)
        for url in args.remove:
            remove_address(redis, args.name, url)
        for url in read_addresses(redis, args.name):
            print(mask_url(url))
    return 0
