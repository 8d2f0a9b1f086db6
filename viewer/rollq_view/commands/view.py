"""`rollq view`: runs, groups and rollouts as web pages on loopback, from Redis or from an exported
file.
"""

import argparse
import secrets
from functools import partial
from pathlib import Path

from rollq.client.client import Client
from rollq.commands.connect import check_run, open_redis, settings
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_redis, add_run
from rollq.commands.flags.types import integer
from rollq.errors import SettingsError
from rollq.pip_extras import needs
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_view.exported import ExportedFile
from rollq_view.redis_place import RedisPlace
from rollq_view.token_texts import load_texts

PORT = 8642


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "view",
        description="Serves web pages on this machine's loopback: runs, groups, every rollout as a "
        "conversation with its tokens, times and the reasons for its reward. Takes an exported "
        "file (FILE.jsonl), else the runs in Redis, which it shows live. Needs the extra view.",
    )
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="exported file (the runs in Redis)"
    )
    add_run(parser, required=False, help="run to open first (all runs)")
    parser.add_argument(
        "--port",
        type=integer(0, 65535),
        default=PORT,
        metavar="N",
        help="port; 0: one that is free (%(default)s)",
    )
    parser.add_argument(
        "--allow-actions",
        action="store_true",
        help="let the page play dead rollouts again; the address that is printed then carries a "
        "token",
    )
    add_redis(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with needs("view"):
        from rollq_view import server
    if args.file is None:
        return _view_redis(args)
    if args.run_name or args.allow_actions:
        raise SettingsError("a file is only looked at: leave out --run and --allow-actions")
    view = server.ViewServer(ExportedFile(args.file), texts=load_texts(settings(args).tokenizer))
    server.serve(view, args.port, ready=lambda port: _print(port, str(args.file), ""))
    return 0


def _view_redis(args: argparse.Namespace) -> int:
    from rollq_view import server

    url = settings(args).redis_url
    token = secrets.token_urlsafe(24) if args.allow_actions else ""
    # A page asks again by itself, and shows the trouble meanwhile.
    with open_redis(args, patience_s=0) as connection:
        if args.run_name:
            check_run(connection, args.run_name, url)
        client = partial(_client, settings(args)) if token else None
        place = RedisPlace(connection, mask_url(url), client)
        texts = load_texts(settings(args).tokenizer)
        view = server.ViewServer(place, run=args.run_name or "", token=token, texts=texts)
        runs = f"run {args.run_name}" if args.run_name else "the runs"
        what = f"{runs} in Redis at {mask_url(url)}"
        server.serve(view, args.port, ready=lambda port: _print(port, what, token))
    return 0


def _client(addresses: Settings, run: str) -> Client:
    return Client(addresses.redis_url, run=run, broker_url=addresses.broker_url)


def _print(port: int, what: str, token: str) -> None:
    print(f"rollq view shows {what}. Open in a browser on this machine:", flush=True)
    print(f"  http://127.0.0.1:{port}/" + (f"#token={token}" if token else ""), flush=True)
    print(
        f"From another machine: ssh -L {port}:127.0.0.1:{port} HOST, then the same address. Ctrl-C "
        "ends it.",
        flush=True,
    )
