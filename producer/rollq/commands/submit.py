"""`rollq submit`: submits the jobs of a list of tasks to a run. Repeating the line
changes nothing.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollq.client.arguments import check_days
from rollq.client.client import AHEAD
from rollq.commands.connect import open_client
from rollq.commands.flags import keys
from rollq.commands.flags.files import environment, typed
from rollq.commands.flags.parser import Commands, Parser
from rollq.commands.flags.plan import Plan, ShownJobs, TaskKeys, explain_interrupt
from rollq.commands.flags.shared import add_json, add_redis, add_run
from rollq.commands.flags.types import integer, tasks
from rollq.commands.progress import open_progress
from rollq.errors import FailureClass, SettingsError
from rollq.job import QUEUE, Purpose
from rollq.ledger.replies import Submission
from rollq.ledger.versions import LARGEST_BOUND
from rollq.numbers import whole_number


@dataclass(frozen=True, kw_only=True)
class SubmitKeys(TaskKeys):
    """The keys of `submit` that are not fields of a job."""

    epochs: int = 1
    """Times through the tasks."""
    ahead: int = AHEAD
    """Waits while this many groups are unacknowledged, over all producers of the run."""
    groups_per_batch: int | None = None
    """Groups that a training step takes; with max_staleness, groups wait until they cannot become
    too old.
    """
    max_staleness: int | None = None
    """Most steps between the policy a group began under and the one trained with it; 0 is on
    policy.
    """
    max_running: int | None = None
    """Most groups that are played at a time, with max_staleness."""
    max_failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failures of a class that makes a job dead, pinned for the whole run by its first
    submission.
    """
    forget_after: float | None = None
    """Forgets acknowledged groups after this many days (default: never)."""
    refill: int = 0
    """Afterwards waits for these groups, and replaces each dropped one up to N times."""

    def __post_init__(self) -> None:
        super().__post_init__()
        smallest = {"epochs": 1, "ahead": 1, "refill": 0}
        for key, at_least in smallest.items():
            whole_number(key, getattr(self, key), at_least, error=SettingsError)
        smallest_bounds = {"groups_per_batch": 1, "max_staleness": 0, "max_running": 1}
        for key, at_least in smallest_bounds.items():
            bound = getattr(self, key)
            if bound is not None:
                whole_number(key, bound, at_least, LARGEST_BOUND, SettingsError)
        for failure, count in self.max_failures.items():
            whole_number(f"max_failures.{failure}", count, at_least=1, error=SettingsError)
        if (self.groups_per_batch is None) != (self.max_staleness is None):
            raise SettingsError("groups_per_batch and max_staleness go together")
        if self.max_running is not None and self.max_staleness is None:
            raise SettingsError("max_running needs groups_per_batch and max_staleness")
        if self.forget_after is not None:
            check_days(self.forget_after)


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "submit",
        description="Submits a group of --size jobs for each task. Repeating the line submits "
        "nothing twice.",
    )
    add_run(parser, required=False)
    add_tasks(parser, split="train", size=1)
    parser.add_argument(
        "--seal",
        action="store_true",
        help="afterwards, seal the run: it takes no more jobs, and its consumers end after the "
        "last groups",
    )
    keys.add_set(parser, SubmitKeys)
    keys.add_config(parser)
    add_redis(parser)
    add_json(
        parser,
        "end stdout with one JSON object: run, groups, size, new, known, acked, sealed, with "
        "refill: refilled",
    )
    parser.set_defaults(run=run)


def add_tasks(parser: Parser, *, split: str, size: int) -> None:
    """The flags that name the tasks. A run file may have them, so none is required."""
    parser.add_argument(
        "--env",
        type=environment,
        metavar="NAME",
        help="environment: shop, tau2:retail, ..., or a file: game.py:load, maths.jsonl:number",
    )
    parser.add_argument(
        "--split", metavar="NAME", help=f"one of the environment's task lists ({split})"
    )
    parser.add_argument(
        "--tasks", type=tasks, metavar="A-B", help="tasks A to B of that list, or one"
    )
    parser.add_argument(
        "--size", type=integer(1), metavar="N", help=f"samples of each task ({size})"
    )


def run(args: argparse.Namespace) -> int:
    values = keys.Values(SubmitKeys).read(args)
    values.need("run", "env", "tasks")
    settings = values.settings(SubmitKeys)
    plan = Plan(job=values.job(task=settings.tasks[0]), keys=settings, epochs=settings.epochs)
    plan.check(settings.refill)
    budgets = {FailureClass(failure): count for failure, count in settings.max_failures.items()}
    refilled: Sequence[str] | None = None
    with (
        explain_interrupt(),
        open_client(args, plan.job.run, budgets=budgets, warn=True) as client,
        open_progress(sys.stderr) as progress,
    ):
        progress.say(plan.describe())
        if plan.groups > settings.ahead:
            progress.say(
                f"waits whenever {settings.ahead} groups are unacknowledged: keep `rollq pull` "
                "running"
            )
        plan.pin_tokenizer(client)
        if settings.forget_after is not None:
            client.forget_after(settings.forget_after)
        if settings.groups_per_batch is not None and settings.max_staleness is not None:
            client.limit_staleness(
                settings.groups_per_batch, settings.max_staleness, settings.max_running
            )
            progress.say(
                "waits whenever groups would become too old: keep the trainer publishing its steps"
            )
        submission = client.submit(
            ShownJobs(plan, progress), ahead=settings.ahead, source=plan.source
        )
        if settings.refill:
            progress.say(
                "waits until the groups are settled, to replace dropped ones: keep `rollq worker` "
                "running"
            )
            refilled = client.refill(plan.jobs(), times=settings.refill, ahead=settings.ahead).new
        if args.seal:
            client.seal()
        broker_error = client.broker_error
    if broker_error:
        print(
            f"rollq: warning: the broker takes no messages ({broker_error}): the workers send the "
            "jobs instead; do the workers use the same ROLLQ_BROKER_URL?",
            file=sys.stderr,
        )
    _report(args, plan, submission, refilled)
    return 0


def _report(
    args: argparse.Namespace, plan: Plan, submission: Submission, refilled: Sequence[str] | None
) -> None:
    if args.json:
        print(json.dumps(_as_json(args, plan, submission, refilled)))
        return
    job = plan.job
    counts = f"{len(submission.new)} jobs submitted, {len(submission.known)} known already"
    if submission.acked:
        counts += f", {len(submission.acked)} acknowledged already"
    print(f"run {job.run}: {plan.groups} groups of {job.size}: {counts}")
    if refilled:
        print(f"      {len(refilled)} jobs in place of dropped groups")
    worker = _worker_line(plan)
    print(f"next: {worker:<34}  # plays them; start as many as you like, on any machine")
    print(f"      rollq stats --run {job.run}")
    purpose = "" if job.purpose is Purpose.TRAIN else f" --purpose {job.purpose}"
    print(f"      rollq pull --run {job.run} --groups {plan.groups}{purpose} --out {job.run}.jsonl")
    if not args.seal:
        print(
            "      the same line with --seal, when all jobs are submitted: consumers end after the "
            "last groups"
        )


def _as_json(
    args: argparse.Namespace, plan: Plan, submission: Submission, refilled: Sequence[str] | None
) -> dict[str, Any]:
    result = {
        "run": plan.job.run,
        "groups": plan.groups,
        "size": plan.job.size,
        "new": len(submission.new),
        "known": len(submission.known),
        "acked": len(submission.acked),
        "sealed": args.seal,
    }
    if refilled is not None:
        result["refilled"] = len(refilled)
    return result


def _worker_line(plan: Plan) -> str:
    """A line that starts a worker of these jobs."""
    job = plan.job
    flags = {
        "--queues": "" if job.queue == QUEUE else job.queue,
        "--env": _typed_file(job.env),
        "--agent": _typed_file(job.agent),
        "--tokenizer": plan.keys.tokenizer,
        "--template": plan.keys.template,
    }
    line = "rollq worker"
    for flag, value in flags.items():
        if value:
            line += f" {flag} {shlex.quote(value)}"
    return line


def _typed_file(name: str) -> str:
    """The name as it was typed if it is a file, else "": every worker knows the others."""
    shown = typed(name)
    return "" if shown == name else shown
