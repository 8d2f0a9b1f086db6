"""`rollq drop`: deletes what dead jobs hold in Redis, or a whole run."""

import argparse
import json

from rollq.client import Client
from rollq.commands.addresses import client
from rollq.commands.arguments import Commands, add_json
from rollq.commands.dead import add_choice, chosen, each
from rollq.errors import SettingsError
from rollq.patience import patiently


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "drop",
        help="delete dead jobs, or a whole run",
        description="Deletes what dead jobs hold (body, journals, traceback), for good: those that are named, those of"
        " a class, or all. They stay counted as dead. With --whole-run everything of the run is deleted.",
    )
    add_choice(parser)
    parser.add_argument("--whole-run", action="store_true", help="delete the run: all its jobs, groups and results")
    parser.add_argument("--yes", action="store_true", help="really delete the whole run")
    add_json(parser, "print one JSON object: run, dropped, refused (job: why); with --whole-run: run, keys")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.whole_run and (args.jobs or args.failure):
        raise SettingsError("--whole-run deletes everything: name no jobs and no class")
    with client(args, args.run_name) as connected:
        if args.whole_run:
            return _whole_run(args, connected)
        return each(args, chosen(args, connected), connected.letters.discard, "dropped")


def _whole_run(args: argparse.Namespace, connected: Client) -> int:
    if not args.yes:
        counts = connected.stats()
        raise SettingsError(
            f"run {args.run_name} has {counts['queued']} jobs queued, {counts['leased']} being played, {counts['done']}"
            f" done ({counts['delivered']} delivered), {counts['dead']} dead: add --yes to delete them all"
        )
    keys = patiently(connected.letters.forget_run)
    print(
        json.dumps({"run": args.run_name, "keys": keys}) if args.json else f"run {args.run_name}: {keys} keys deleted"
    )
    return 0
