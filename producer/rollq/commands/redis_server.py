"""`rollq redis`: runs a Redis server with the settings that rollq needs, in the foreground."""

import argparse
import os
import sys
from pathlib import Path

from rollq.commands.flags.parser import Commands
from rollq.commands.flags.types import integer
from rollq.errors import SettingsError
from rollq.processes import embedded_redis


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "redis",
        description="Runs a Redis server in the foreground: append-only file, no eviction, "
        "127.0.0.1 only.",
    )
    parser.add_argument(
        "--port", type=integer(1, 65535), default=6379, help="port to listen on (%(default)s)"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="folder of its data, kept between starts (rollq-redis-PORT)",
    )
    parser.add_argument(
        "--fsync",
        choices=embedded_redis.FSYNC,
        default=embedded_redis.EVERY_SECOND,
        help="when it writes to its disk: once a second, or before each answer (%(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the server, so that signals and exit codes are the server's own.

    Returns only by raising SettingsError.
    """
    folder = (args.dir or Path(f"rollq-redis-{args.port}")).absolute()
    command = embedded_redis.command(args.port, folder, args.fsync)
    if embedded_redis.port_taken(args.port):
        raise SettingsError(
            f"port {args.port} of {embedded_redis.HOST} is in use (by another Redis?); choose "
            "another --port"
        )
    embedded_redis.lock(folder)
    embedded_redis.mend(folder)
    print(
        f"redis://{embedded_redis.HOST}:{args.port}/0  data in {folder}, Ctrl-C stops it",
        flush=True,
    )
    sys.stderr.flush()
    os.execv(command[0], command)
