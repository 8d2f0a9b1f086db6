"""`rollq requeue`: dead jobs get a fresh start."""

import argparse

from rollq.commands.addresses import client
from rollq.commands.arguments import Commands, add_json
from rollq.commands.dead import add_choice, chosen, each


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "requeue",
        help="play dead jobs again",
        description="Gives dead jobs a fresh start: no failures, an empty journal; the old one is set aside. Those that"
        " are named, those of a class, or all. A dropped group comes back with its member; a group that is handed out"
        " without it, or is about to be, stays as it is.",
    )
    add_choice(parser)
    add_json(parser, "print one JSON object: run, requeued, refused (job: why)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with client(args, args.run_name) as connected:
        return each(args, chosen(args, connected), connected.letters.requeue, "requeued")
