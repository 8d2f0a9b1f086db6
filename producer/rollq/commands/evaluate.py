"""`rollq eval`: plays each task several times over the workers, and says how often the policy succeeds.

Nothing is acknowledged before the whole result has been said: the same line, started again after a crash, goes on and
counts everything once.
"""

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollq.batch import Batch
from rollq.client.client import Client
from rollq.client.consumer import Consumer
from rollq.commands import job_flags, run_file
from rollq.commands.connect import client
from rollq.commands.flags import Commands, add_broker, add_json, add_redis, name, number
from rollq.commands.progress import Progress, open_progress
from rollq.errors import NotHeld, PullTimeout, RollqError, SettingsError
from rollq.export.jsonl import TrajectoryFile
from rollq.export.summary import Summary
from rollq.job import Purpose

LOOK_S = 2.0
"""Between two looks at how the run stands, while waiting."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure a policy: mean reward and pass^k",
        description="Submits each task --size times to a run of its own, waits while the workers play, and reports mean"
        " reward and pass^k: the chance that k tries at a task all succeed. Stopped anywhere, the same line goes on.",
    )
    run_file.add(parser)
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN", help="a new one")
    job_flags.add_tasks(parser, split="test", size=4)
    job_flags.add_play(parser)
    parser.add_argument(
        "--timeout", type=number(0), metavar="S", help="give up after so many seconds, with exit code 1 (never)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="add the trajectories to this JSON Lines file")
    add_redis(parser)
    add_broker(parser)
    add_json(parser, "end stdout with one JSON object (its fields: docs/commands.md)")
    parser.set_defaults(run=run, purpose=Purpose.EVAL, epochs=1, min_viable=None)


class Evaluation:
    """The tries that have been graded so far. Groups with a dead member are left out: they have too few tries."""

    def __init__(self, args: argparse.Namespace, out: TrajectoryFile | None) -> None:
        self.args = args
        self.jobs: int = len(args.tasks) * args.size
        self.summary = Summary()
        self._out = out
        self._groups: dict[str, Callable[[], None]] = {}
        """How to acknowledge each group; the trajectories themselves would fill the memory."""

    @property
    def complete(self) -> bool:
        return self.summary.graded == self.jobs

    def receive(self, batch: Batch) -> None:
        if self._out and not self._out.save(batch):
            return
        for group in batch.groups:
            if group.id not in self._groups:  # else its hold was lost for a while
                for trajectory in group.trajectories:
                    self.summary.add(trajectory)
            self._groups[group.id] = batch.ack

    def ack(self) -> None:
        for acknowledge in self._groups.values():
            with contextlib.suppress(NotHeld):  # the result has been said all the same
                acknowledge()

    def result(self, dead: int, wall_s: float) -> dict[str, Any]:
        args, s = self.args, self.summary
        return {
            "run": args.run_name,
            "env": args.env,
            "split": args.split,
            "tasks": len(args.tasks),
            "size": args.size,
            "submitted": self.jobs,
            "done": s.trajectories,
            "dead": dead,
            "reward_mean": s.reward_mean,
            "reward_stderr": s.reward_stderr,
            "pass_hat_k": {str(k): value for k, value in s.pass_hat_k(args.size).items()},
            "turns_mean": s.turns_mean,
            "sampled_tokens": s.sampled_tokens,
            "total_tokens": s.total_tokens,
            "stops": dict(s.stops),
            "versions": sorted(s.versions),
            "wall_s": round(wall_s, 3),
        }


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    job_flags.check(args)
    with contextlib.ExitStack() as stack:
        stack.enter_context(job_flags.restartable())
        out = stack.enter_context(TrajectoryFile(args.out, append=True)) if args.out else None
        connected = stack.enter_context(client(args, args.run_name, warn=True))
        progress = stack.enter_context(open_progress(sys.stderr))
        progress.say(job_flags.line(args))
        _submit(args, connected, progress)
        evaluation = Evaluation(args, out)
        with connected.consumer(Purpose.EVAL) as consumer:
            _collect(evaluation, connected, consumer, progress)
            progress.close()
            result = evaluation.result(connected.stats()["dead"], time.monotonic() - began)
            _report(args, result)
            if evaluation.complete:
                evaluation.ack()
                return 0
    print(
        f"rollq: incomplete: {evaluation.jobs - result['done']} of {evaluation.jobs} tries are missing, and their tasks"
        f" are left out; why: rollq dead --run {args.run_name}; play them again: rollq requeue --run {args.run_name},"
        " and then the same line again",
        file=sys.stderr,
    )
    return 1


def _submit(args: argparse.Namespace, run: Client, progress: Progress) -> None:
    """Everything, and seals the run. Raises SettingsError when other jobs are on it, RollqError."""
    first = next(job_flags.jobs(args))
    if run.stats()["submitted"] and run.ledger.job(first.id) is None:
        raise SettingsError(f"run {args.run_name} has other jobs: an evaluation needs a run of its own")
    groups = len(args.tasks)
    run.submit(job_flags.watched(job_flags.jobs(args), groups, progress), ahead=groups, source=job_flags.source(args))
    run.seal()
    if run.stats()["groups_acked"] == groups:
        raise RollqError(f"run {args.run_name} was evaluated before: evaluate again under another --run")


def _collect(evaluation: Evaluation, run: Client, consumer: Consumer, progress: Progress) -> None:
    """Until every try is graded or dead. Raises PullTimeout."""
    args = evaluation.args
    deadline = math.inf if args.timeout is None else time.monotonic() + args.timeout
    while True:
        progress.show(evaluation.summary.trajectories, evaluation.jobs, _facts(evaluation, run, consumer))
        try:
            batch = consumer.next(1, min(LOOK_S, max(0.0, deadline - time.monotonic())))
        except PullTimeout as e:
            if time.monotonic() >= deadline:
                raise PullTimeout(
                    f"run {args.run_name}: {evaluation.summary.trajectories} of {evaluation.jobs} tries were graded"
                    f" within {args.timeout:g} s; the same line goes on. Is a rollq worker running? rollq stats --run"
                    f" {args.run_name}"
                ) from e
            continue
        if batch is None:
            return
        with contextlib.suppress(NotHeld):  # it comes again
            evaluation.receive(batch)


def _facts(evaluation: Evaluation, run: Client, consumer: Consumer) -> dict[str, str]:
    """What is known so far, and what the wait is for."""
    jobs, mean = run.stats(), evaluation.summary.reward_mean
    facts = {
        "tries": f"graded in run {evaluation.args.run_name}",
        "reward": "-" if mean is None else f"{mean:.3f}",
        "jobs": f"{jobs['queued']} queued, {jobs['leased']} being played, {jobs['dead']} dead",
    }
    if (elsewhere := run.ledger.standing(Purpose.EVAL).held - consumer.held) > 0:
        facts["waiting"] = f"for {elsewhere} groups that another consumer holds: one that died lets go within a minute"
    return facts


def _report(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(result), flush=True)
        return
    mean = "-" if result["reward_mean"] is None else f"{result['reward_mean']:.3f} mean"
    error = "" if result["reward_stderr"] is None else f", standard error {result['reward_stderr']:.3f} (over tasks)"
    turns = "-" if result["turns_mean"] is None else f"{result['turns_mean']:.1f}"
    rows = {
        "eval": f"{args.run_name}: {args.env}/{args.split}, {len(args.tasks)} tasks, {args.size} tries each",
        "reward": mean + error,
        "pass^k": "  ".join(f"pass^{k} {value:.3f}" for k, value in result["pass_hat_k"].items()) or "-",
        "jobs": f"{result['submitted']} submitted: {result['done']} graded here, {result['dead']} dead",
        "stops": ", ".join(f"{stop} {count}" for stop, count in sorted(result["stops"].items())) or "-",
        "tokens": f"{result['sampled_tokens']} sampled of {result['total_tokens']}, {turns} turns an episode",
        "weights": ", ".join(result["versions"]) or "-",
    }
    print("\n".join(f"{subject:<8} {text}" for subject, text in rows.items()))
    print(f"next: rollq show {args.out}:1" if args.out else f"next: rollq stats --run {args.run_name}")
    sys.stdout.flush()
