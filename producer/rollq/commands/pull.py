"""`rollq pull`: takes finished groups off a run, writes them down, and only then
acknowledges them.
"""

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import fsum, inf
from typing import Any

from rollq.batch import Batch
from rollq.client.client import Client
from rollq.client.consuming.functions import Filter, RewardFunction
from rollq.client.tracking import parts
from rollq.client.waits import explain
from rollq.commands.connect import open_client, open_run
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import (
    add_json,
    add_out,
    add_purpose,
    add_redis,
    add_run,
    add_timeout,
)
from rollq.commands.flags.types import integer, name
from rollq.commands.progress import ProgressDisplay, open_progress
from rollq.commands.receive import batches, save, unfinished_and_dead
from rollq.errors import NotHeld, PullTimeout, SettingsError
from rollq.export.output import TrajectoryFile
from rollq.job import Purpose
from rollq.ledger.reader import LedgerReader
from rollq.servers.retry import retry

LARGEST_BATCH = 64
"""Most groups in one batch, so that memory does not limit a pull."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "pull",
        description="Waits for finished groups, oldest first, writes them to --out and "
        "acknowledges them. Ends early when a sealed run has no more.",
    )
    add_run(parser)
    parser.add_argument(
        "--groups", type=integer(1), required=True, metavar="N", help="number of groups to take"
    )
    add_timeout(parser)
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for a run that does not exist yet (without it, that is an error)",
    )
    add_out(parser)
    parser.add_argument(
        "--where",
        type=filter_name,
        metavar="NAME",
        help="keep only the groups that this filter wants: unequal_rewards, or module:function; "
        "the others are skipped",
    )
    parser.add_argument(
        "--reward",
        type=reward_function,
        metavar="MODULE:FUNCTION",
        help="rewards of a function of yours in place of the environment's",
    )
    parser.add_argument(
        "--extras",
        type=extra_names,
        default=[],
        metavar="NAME,...",
        help="write these arrays, too, of the episodes that have them; they leave Redis with the "
        "others",
    )
    parser.add_argument(
        "--track",
        type=tracker,
        metavar="NAME[:PROJECT[:ROLLOUTS]]",
        help="tell wandb, mlflow or trackio of each batch: numbers, and so many of its rollouts as "
        "text (none)",
    )
    parser.add_argument(
        "--name",
        type=name,
        metavar="NAME",
        help="go on where the last pull with this name stopped, also with the steps that --track "
        "names",
    )
    add_purpose(
        parser, "take groups that were submitted for training, or for evaluation (%(default)s)"
    )
    add_redis(parser)
    add_json(
        parser,
        "end stdout with one JSON object: run, groups, missing, delivered, duplicates, "
        "reward_mean, stops, staleness_max; with --out: repeated",
    )
    parser.set_defaults(run=run)


def extra_names(text: str) -> list[str]:
    """An argument type: names of arrays beside the journals."""
    names = text.split(",")
    if all(names):
        return names
    raise argparse.ArgumentTypeError(f"expected names separated by commas, not {text!r}")


def filter_name(text: str) -> str:
    """An argument type: a filter of groups."""
    return _function(Filter.of, text)


def reward_function(text: str) -> str:
    """An argument type: a function of trajectories."""
    return _function(RewardFunction.of, text)


def tracker(text: str) -> str:
    """An argument type: an experiment tracker."""
    return _function(parts, text)


def _function(find: Callable[[str], object], text: str) -> str:
    folder = os.getcwd()  # as for `python -m`, so that a function beside the file is found
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        find(text)
    except SettingsError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    return text


class Pull:
    """One pull, and what it has received so far."""

    def __init__(self, args: argparse.Namespace, out: TrajectoryFile | None) -> None:
        self.args = args
        self.groups: set[str] = set()
        self.jobs: Counter[str] = Counter()
        """Acknowledgements of each job."""
        self.stops: Counter[str] = Counter()
        self.rewards: list[float] = []
        self.ages: set[int | None] = set()
        """The staleness of the batches, in a run that publishes steps; None for one with tokens of
        unknown weights.
        """
        self._out = out

    @property
    def missing(self) -> int:
        left = int(self.args.groups) - len(self.groups)
        return max(0, left)  # a name may still hold more

    @property
    def stalest(self) -> int | None:
        """The largest staleness of a batch, if all are known."""
        if not self.ages or None in self.ages:
            return None
        return max(0, *filter(None, self.ages), 0)

    def receive(self, batch: Batch) -> None:
        """Writes the batch down, then acknowledges it. Raises NotHeld when another consumer has it
        by now.
        """
        if not save(batch, self._out):
            return
        batch.ack()
        self.rewards += batch.rewards
        if batch.policy_step is not None:
            self.ages.add(batch.staleness.max)
        for trajectory in batch.trajectories:
            self.jobs[trajectory.job.id] += 1
            self.stops[str(trajectory.stop)] += 1
        self.groups.update(group.id for group in batch.groups)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "run": self.args.run_name,
            "groups": len(self.groups),
            "missing": self.missing,
            "delivered": len(self.jobs),
            "duplicates": sum(count - 1 for count in self.jobs.values()),
            "reward_mean": fsum(self.rewards) / len(self.rewards) if self.rewards else None,
            "stops": dict(self.stops),
            "staleness_max": self.stalest,
        }
        if self._out:
            result["repeated"] = self._out.repeated
        return result


def run(args: argparse.Namespace) -> int:
    stdout = sys.stdout
    with contextlib.ExitStack() as stack:
        # Trackers print, until the client closes them, and stdout is for the pull's own lines.
        if args.track:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        out = stack.enter_context(TrajectoryFile(args.out, append=True)) if args.out else None
        client = stack.enter_context(
            open_client(args, args.run_name, warn=True, must_exist=not args.wait)
        )
        reader = stack.enter_context(open_run(args, args.run_name, must_exist=False))
        if out:
            out.run_began = reader.began
        progress = stack.enter_context(open_progress(sys.stderr))
        pull = Pull(args, out)
        if not out:
            progress.say(
                "nothing is kept without --out FILE: acknowledged trajectories are gone from Redis"
            )
        try:
            _pull(pull, client, reader, progress)
            why = "the run is sealed and has no more"
        except PullTimeout:
            why = f"no more within {args.timeout:g} s"
        except KeyboardInterrupt:
            with contextlib.redirect_stdout(stdout):
                _report(args, pull)
            raise KeyboardInterrupt("unacknowledged groups are handed out again") from None
        progress.close()
        if pull.missing:
            print(f"rollq: run {args.run_name}: {why}: {_missing(pull, reader)}", file=sys.stderr)
    _report(args, pull)
    return 1 if pull.missing else 0


def _pull(pull: Pull, client: Client, reader: LedgerReader, progress: ProgressDisplay) -> None:
    """Receives batches until nothing is missing or a sealed run has ended. Raises PullTimeout."""
    args = pull.args
    until = inf if args.timeout is None else time.monotonic() + args.timeout

    def look() -> int:
        left_s = max(0.0, until - time.monotonic())
        standing, stats = retry(lambda: (reader.standing(args.purpose), reader.stats()), left_s)
        facts = {
            "groups": f"of run {args.run_name}",
            "ready": str(standing.ready),
            "open": str(standing.open),
            "held": str(standing.held),
            "jobs": unfinished_and_dead(stats),
        }
        progress.show(len(pull.groups), args.groups, facts)
        most = standing.admission.groups_per_batch if standing.admission else LARGEST_BATCH
        # No more than is ready: the producer may be waiting for acknowledgements before it submits
        # the rest.
        return min(most, LARGEST_BATCH, pull.missing, max(1, standing.ready))

    with client.consumer(
        args.purpose,
        name=args.name,
        where=args.where,
        reward=args.reward,
        extras=args.extras,
        track=args.track,
    ) as consumer:
        why = partial(explain, reader, args.purpose)
        waited = batches(
            consumer, look, timeout=args.timeout, explain=lambda groups: why(wanted=groups)
        )
        try:
            for batch in waited:
                try:
                    pull.receive(batch)
                except NotHeld as e:
                    progress.say(f"written down too late, and so not acknowledged: {e}")
        except PullTimeout:
            look()  # what is shown last is how it ended
            raise
        look()


def _missing(pull: Pull, reader: LedgerReader) -> str:
    stats = reader.stats()
    purpose: Purpose = pull.args.purpose
    groups = reader.standing(purpose)
    acked = stats["groups_acked"]
    if acked >= pull.args.groups and not (pull.groups or groups.unacknowledged):
        return f"all {acked} groups were acknowledged before"
    text = (
        f"{pull.missing} of {pull.args.groups} groups are missing; {groups.ready} are ready, "
        f"{groups.open} open, {groups.held} held by a consumer; jobs: {unfinished_and_dead(stats)}"
    )
    hint = explain(reader, purpose, wanted=pull.missing)
    if hint:
        text += f"; {hint.removeprefix(f'run {pull.args.run_name}: ')}"
    return text


def _report(args: argparse.Namespace, pull: Pull) -> None:
    result = pull.result()
    if args.json:
        print(json.dumps(result))
        return
    mean = "-" if result["reward_mean"] is None else f"{result['reward_mean']:.3f}"
    stops = ", ".join(f"{stop} {count}" for stop, count in pull.stops.most_common())
    stale = "" if pull.stalest is None else f", staleness {pull.stalest} at most"
    print(
        f"{result['groups']} groups, {result['delivered']} trajectories, reward {mean}, stops "
        f"{stops or '-'}{stale}"
    )
    repeated = result.get("repeated")
    if repeated:
        print(f"{repeated} of them were in {args.out} already, and are not written twice")
    next_line = f"rollq stats --run {args.run_name}"
    if result["groups"] and args.out:
        next_line = f"rollq show {shlex.quote(f'{args.out}:1')}"
    print(f"next: {next_line}")
