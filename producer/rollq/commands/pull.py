"""`rollq pull`: takes finished groups off a run, writes them down, and only then acknowledges them."""

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rollq.batch import Batch
from rollq.client import Client
from rollq.commands.addresses import client
from rollq.commands.arguments import Commands, add_json, add_redis, name, number, whole
from rollq.errors import PullTimeout
from rollq.jsonl import TrajectoryFile
from rollq.progress import Progress, open_progress
from rollq.summary import Summary

AT_ONCE = 64
"""Groups a batch: a larger pull is taken in parts, so that neither memory nor `submit --ahead` bounds it."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "pull",
        help="take finished groups off a run",
        description="Waits for finished groups, oldest first, and acknowledges them once they are written down. Ends"
        f" early when a sealed run has no more. Up to {AT_ONCE} groups are taken at a time, all or none.",
    )
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    parser.add_argument("--groups", type=whole(1), required=True, metavar="N", help="how many groups")
    parser.add_argument(
        "--timeout", type=number(0), metavar="S", help="give up after so many seconds, with exit code 1 (never)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="add the trajectories to this JSON Lines file, each job once"
    )
    parser.add_argument(
        "--no-ack", action="store_true", help="only look: the groups are handed out again a minute later"
    )
    add_redis(parser)
    add_json(parser, "end stdout with one JSON object: run, groups, missing, delivered, duplicates, reward_mean, stops")
    parser.set_defaults(run=run)


class Pull:
    """One pull: what has been received so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.groups: set[str] = set()
        self.jobs: Counter[str] = Counter()
        """How often each job was acknowledged, or seen with --no-ack."""
        self.summary = Summary()

    @property
    def missing(self) -> int:
        return int(self.args.groups) - len(self.groups)

    def receive(self, batch: Batch, out: TrajectoryFile | None) -> None:
        """Writes the batch down, then acknowledges it."""
        if out:
            for trajectory in batch.trajectories:
                out.write(trajectory)
            out.sync()
        if not self.args.no_ack:
            batch.ack()
        for trajectory in batch.trajectories:
            self.jobs[trajectory.job.id] += 1
            self.summary.add(trajectory)
        self.groups.update(group.id for group in batch.groups)

    def result(self) -> dict[str, Any]:
        return {
            "run": self.args.run_name,
            "groups": len(self.groups),
            "missing": self.missing,
            "delivered": len(self.jobs),
            "duplicates": sum(count - 1 for count in self.jobs.values()),
            "reward_mean": self.summary.reward_mean,
            "stops": dict(self.summary.stops),
        }


def run(args: argparse.Namespace) -> int:
    pull = Pull(args)
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(TrajectoryFile(args.out, append=True)) if args.out else None
        connected = stack.enter_context(client(args, args.run_name, warn=True))
        progress = stack.enter_context(open_progress(sys.stderr))
        try:
            _pull(pull, connected, out, progress)
            why = "the run is sealed and has no more"
        except PullTimeout as e:
            why = str(e)
        progress.close()
        if pull.missing:
            print(f"rollq: {why}\nrollq: {_missing(pull, connected)}", file=sys.stderr)
    _report(pull)
    return 1 if pull.missing else 0


def _pull(pull: Pull, run: Client, out: TrajectoryFile | None, progress: Progress) -> None:
    """Until nothing is missing or a sealed run has ended. Raises PullTimeout."""
    deadline = None if pull.args.timeout is None else time.monotonic() + pull.args.timeout
    while pull.missing:
        progress.show(len(pull.groups), pull.args.groups, {"groups": f"of run {pull.args.run_name}"})
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        batches = run.batches(groups=min(AT_ONCE, pull.missing), timeout=left)  # keeps what it holds until it goes
        batch = next(batches, None)
        if batch is None:
            return
        pull.receive(batch, out)


def _missing(pull: Pull, run: Client) -> str:
    """What a pull that timed out is still waiting for, and why that may be."""
    now = run.stats()
    hint = ""
    if not now["submitted"]:
        hint = "; nothing was submitted to this run: see rollq submit"
    elif now["groups_dropped"]:
        hint = f"; {now['groups_dropped']} groups were dropped, for too many of their jobs are dead: see rollq dead"
    elif now["queued"] and not now["leased"]:
        hint = "; nobody is playing: is a rollq worker running, and its engine up?"
    return (
        f"{pull.missing} of {pull.args.groups} groups are missing; of the run's, {now['groups_ready']} are ready,"
        f" {now['groups_open']} open, {now['groups_held']} held by a consumer;"
        f" {now['queued']} jobs are queued, {now['leased']} being played, {now['dead']} dead{hint}"
    )


def _report(pull: Pull) -> None:
    if pull.args.json:
        print(json.dumps(pull.result()))
        return
    mean = "-" if pull.summary.reward_mean is None else f"{pull.summary.reward_mean:.3f}"
    stops = ", ".join(f"{stop} {count}" for stop, count in pull.summary.stops.most_common())
    print(f"{len(pull.groups)} groups, {len(pull.jobs)} trajectories, reward {mean}, stops {stops or '-'}")
    if pull.args.out:
        print(f"in {pull.args.out}; look at one with: rollq show {pull.args.out}:1")
    if pull.args.no_ack:
        print("not acknowledged: they are handed out again")
