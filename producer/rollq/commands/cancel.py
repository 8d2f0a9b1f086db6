"""`rollq cancel`: jobs that are queued or being played end as dead, of class cancelled."""

import argparse

from rollq.commands.addresses import client
from rollq.commands.arguments import Commands, add_json, add_redis, name
from rollq.commands.dead import chosen, each
from rollq.errors import SettingsError


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "cancel",
        help="end jobs that are queued or being played",
        description="The jobs are dead at once, of class cancelled; a worker that plays one stops within seconds. Their"
        " groups settle as with any dead member.",
    )
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="RUN/GROUP/SAMPLE")
    parser.add_argument("--all", action="store_true", help="every job of the run that has not ended")
    add_redis(parser)
    add_json(parser, "print one JSON object: run, cancelled, refused (job: why)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if bool(args.jobs) == args.all:
        raise SettingsError("name the jobs to cancel, or say --all")
    with client(args, args.run_name) as connected:
        ids = chosen(args, connected) if args.jobs else [*connected.letters.unfinished()]
        return each(args, ids, connected.letters.cancel, "cancelled")
