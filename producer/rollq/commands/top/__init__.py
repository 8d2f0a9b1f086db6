"""`rollq top`: what the fleet does at this moment, and what holds it up, until it is stopped."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from rollq.commands.connect import check_run, ping_redis, settings
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_json, add_redis, add_run
from rollq.commands.progress import exit_on_sigterm
from rollq.commands.top.frame import Pace, frame
from rollq.commands.top.screen import Screen, open_screen
from rollq.errors import LedgerError, RollqError
from rollq.servers.connection import connect
from rollq.servers.refusal import no_answer
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.snapshot.fleet import FleetSnapshot, read_fleet
from rollq.snapshot.holdups import fleet_holdup
from rollq.snapshot.run import RunSnapshot
from rollq.urls import mask_url

AGAIN = "Start it again"
REFRESH_S = 2.0
"""Seconds between two looks."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "top",
        description="Shows runs, engines and workers, how fast they play, and in one line what "
        "holds it up. Refreshes every two seconds until Ctrl-C; the last frame stays. Without a "
        "terminal it prints a frame every ten seconds.",
    )
    add_run(
        parser,
        required=False,
        help="show this run only (those with work, then the newest; 20 at most)",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    add_redis(parser)
    add_json(
        parser,
        "print one JSON object for each refresh: at, turns_s, tokens_s, in_flight, slots, "
        "more_runs, holdup, server, runs, unreadable, engines, workers, lost; only holdup while "
        "Redis is away",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    url = settings(args).redis_url
    ping_redis(url)
    connection = connect(url, patience_s=0)
    try:
        if args.run_name is not None:
            check_run(connection, args.run_name, url)
        with (
            exit_on_sigterm(),
            open_screen(sys.stdout, live=not (args.once or args.json)) as screen,
        ):
            read = partial(read_fleet, connection, args.run_name)
            _Top(args, read, screen, mask_url(url)).look()
    except (KeyboardInterrupt, SystemExit):
        return 0  # by Ctrl-C or SIGTERM, the usual ways to end it
    finally:
        connection.close()
    return 0


class _Top:
    def __init__(
        self,
        args: argparse.Namespace,
        read: Callable[[], FleetSnapshot],
        screen: Screen,
        address: str,
    ) -> None:
        self._args = args
        self._read = read
        self._screen = screen
        self._address = address
        self._pace = Pace()
        self._away_since: float | None = None

    def look(self) -> None:
        """Looks again and again, or once. Then Redis must answer: raises RollqError."""
        while True:
            began = time.monotonic()
            try:
                self._show(self._read())
                self._away_since = None
            except (LedgerError, *CONNECTION_ERRORS) as e:
                self._trouble(e, began)
            if self._args.once:
                return
            time.sleep(max(0.0, REFRESH_S - (time.monotonic() - began)))

    def _show(self, fleet: FleetSnapshot) -> None:
        if self._args.json:
            print(json.dumps(as_json(fleet)), flush=True)
        else:
            pace = self._pace.of(fleet)
            self._screen.show(frame(fleet, pace, self._address, wide=self._screen.wide))

    def _trouble(self, error: Exception, began: float) -> None:
        """`began`: when the look did. A single one may take long."""
        if isinstance(error, LedgerError):
            text = str(error)
        else:
            self._away_since = self._away_since or began
            away_s = time.monotonic() - self._away_since
            text = (
                f"Redis at {self._address} does not answer ({error}), for "
                f"{away_s:.0f} s. Workers, producers and trainers wait for it; "
                f"what it had on its disk is not lost. {no_answer(error) or AGAIN}"
            )
        if self._args.once:
            raise RollqError(text)
        if self._args.json:
            print(json.dumps({"holdup": text}), flush=True)
        else:
            self._screen.trouble(text)


def as_json(fleet: FleetSnapshot) -> Mapping[str, Any]:
    """The fleet, with the totals that the head of a frame shows."""
    totals = {
        name: getattr(fleet, name)
        for name in ("turns_s", "tokens_s", "in_flight", "slots", "more_runs")
    }
    return {
        "at": fleet.server.at,
        **totals,
        "holdup": fleet_holdup(fleet),
        "server": asdict(fleet.server),
        "runs": [_run_json(run) for run in fleet.runs],
        "unreadable": fleet.unreadable,
        "engines": [asdict(engine) for engine in fleet.engines],
        "workers": [
            {**asdict(worker), "engines": [use._asdict() for use in worker.engines]}
            for worker in fleet.workers
        ],
        "lost": fleet.lost,
    }


def _run_json(run: RunSnapshot) -> Mapping[str, Any]:
    return {
        **run.counts,
        "step": run.step,
        "max_staleness": run.max_staleness,
        "oldest": run.oldest and run.oldest.name,
        "oldest_s": run.oldest_s,
        "staleness": run.staleness("open", "ready"),
    }
