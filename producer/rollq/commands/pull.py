"""`rollq pull`: takes finished groups off a run, writes them down, and only then acknowledges them."""

import argparse
import contextlib
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rollq.batch import Batch
from rollq.client.client import Client
from rollq.commands.connect import client
from rollq.commands.flags import Commands, add_json, add_redis, name, number, whole
from rollq.commands.progress import Progress, open_progress
from rollq.errors import NotHeld, PullTimeout
from rollq.export.jsonl import TrajectoryFile
from rollq.export.summary import Summary
from rollq.job import Purpose
from rollq.ledger.replies import Standing

AT_ONCE = 64
"""Groups a batch at most: memory does not bound a pull."""
LOOK_S = 2.0
"""Between two looks at how the run stands, while waiting."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "pull",
        help="take finished groups off a run",
        description="Waits for finished groups, oldest first, and acknowledges them once they are written down. Ends"
        " early when a sealed run has no more.",
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
        "--purpose",
        type=Purpose,
        choices=list(Purpose),
        default=Purpose.TRAIN,
        help="groups that were submitted to train, or to eval (%(default)s)",
    )
    parser.add_argument(
        "--no-ack", action="store_true", help="only look: the groups are handed out again a minute later"
    )
    add_redis(parser)
    add_json(
        parser,
        "end stdout with one JSON object: run, groups, missing, delivered, duplicates, reward_mean, stops;"
        " with --out: repeated",
    )
    parser.set_defaults(run=run)


class Pull:
    """One pull: what has been received so far."""

    def __init__(self, args: argparse.Namespace, out: TrajectoryFile | None) -> None:
        self.args = args
        self.groups: set[str] = set()
        self.jobs: Counter[str] = Counter()
        """How often each job was acknowledged, or seen with --no-ack."""
        self.summary = Summary()
        self._out = out

    @property
    def missing(self) -> int:
        return int(self.args.groups) - len(self.groups)

    def receive(self, batch: Batch) -> None:
        """Writes the batch down, then acknowledges it. Raises NotHeld when it has become somebody else's."""
        if self._out and not self._out.save(batch):
            return
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
            **({"repeated": self._out.repeated} if self._out else {}),
        }


def run(args: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(TrajectoryFile(args.out, append=True)) if args.out else None
        connected = stack.enter_context(client(args, args.run_name, warn=True))
        progress = stack.enter_context(open_progress(sys.stderr))
        pull = Pull(args, out)
        if not (out or args.no_ack):
            progress.say("nothing is kept without --out FILE: what is acknowledged is gone from Redis")
        try:
            _pull(pull, connected, progress)
            why = "the run is sealed and has no more"
        except PullTimeout:
            why = f"no more within {args.timeout:g} s"
        except KeyboardInterrupt:
            _report(args, pull)
            raise KeyboardInterrupt("what was not acknowledged comes again within a minute") from None
        progress.close()
        if pull.missing:
            print(f"rollq: run {args.run_name}: {why}: {_missing(pull, connected)}", file=sys.stderr)
    _report(args, pull)
    return 1 if pull.missing else 0


def _pull(pull: Pull, run: Client, progress: Progress) -> None:
    """Until nothing is missing or a sealed run has ended. Raises PullTimeout."""
    args = pull.args
    deadline = math.inf if args.timeout is None else time.monotonic() + args.timeout
    with run.consumer(args.purpose) as consumer:
        while pull.missing:
            standing = run.ledger.standing(args.purpose)
            progress.show(len(pull.groups), args.groups, _facts(args, run, standing))
            left = min(LOOK_S, max(0.0, deadline - time.monotonic()))
            try:
                # What is ready now: waiting for more, it would wait for ever for a producer that waits for it.
                batch = consumer.next(min(AT_ONCE, pull.missing, max(1, standing.ready)), left)
                if batch is None:
                    return
                pull.receive(batch)
            except NotHeld as e:
                progress.say(f"written down too late, and so not acknowledged: {e}")
            except PullTimeout:
                if time.monotonic() >= deadline:
                    raise


def _facts(args: argparse.Namespace, run: Client, now: Standing) -> dict[str, str]:
    """What the wait is for."""
    jobs = run.stats()
    return {
        "groups": f"of run {args.run_name}",
        "ready": str(now.ready),
        "open": str(now.open),
        "held": str(now.held),
        "jobs": f"{jobs['queued']} queued, {jobs['leased']} being played, {jobs['dead']} dead",
    }


def _missing(pull: Pull, run: Client) -> str:
    """What was still waited for, and why that may be."""
    jobs = run.stats()
    here, there = (run.ledger.standing(purpose) for purpose in _this_first(pull.args.purpose))
    hint = ""
    if not jobs["submitted"]:
        hint = "; nothing was submitted to this run: see rollq submit"
    elif not here.unacknowledged and there.unacknowledged:
        hint = "; its groups are for another purpose: see --purpose"
    elif jobs["groups_dropped"]:
        hint = f"; {jobs['groups_dropped']} groups were dropped, for too many of their jobs are dead: see rollq dead"
    elif jobs["queued"] and not jobs["leased"]:
        hint = "; nobody is playing: is a rollq worker running, and its engine up?"
    elif not here.sealed and not here.open:
        hint = "; nothing more was submitted: ask for fewer groups, or see rollq submit --seal"
    return (
        f"{pull.missing} of {pull.args.groups} groups are missing; {here.ready} are ready, {here.open} open,"
        f" {here.held} held by a consumer; {jobs['queued']} jobs are queued, {jobs['leased']} being played,"
        f" {jobs['dead']} dead{hint}"
    )


def _this_first(purpose: Purpose) -> list[Purpose]:
    return sorted(Purpose, key=lambda other: other is not purpose)


def _report(args: argparse.Namespace, pull: Pull) -> None:
    """What was received, and what to do next."""
    found = pull.result()
    if args.json:
        print(json.dumps(found))
        return
    mean = "-" if found["reward_mean"] is None else f"{found['reward_mean']:.3f}"
    stops = ", ".join(f"{stop} {count}" for stop, count in pull.summary.stops.most_common())
    print(f"{found['groups']} groups, {found['delivered']} trajectories, reward {mean}, stops {stops or '-'}")
    if found.get("repeated"):
        print(f"{found['repeated']} of them were in {args.out} already, and are not written twice")
    if args.no_ack and found["groups"]:
        print("not acknowledged: they are handed out again in a minute")
    print(
        f"next: rollq show {args.out}:1" if args.out and found["groups"] else f"next: rollq stats --run {args.run_name}"
    )
