"""`rollq submit`: submits the jobs of a list of tasks to a run. Repeating the line changes nothing."""

import argparse
import json
import re
import sys
from collections.abc import Sequence

from rollq.commands.connect import open_client
from rollq.commands.flags import jobs as job_flags
from rollq.commands.flags import play, run_file
from rollq.commands.flags.shared import (
    add_broker,
    add_durability,
    add_json,
    add_purpose,
    add_redis,
    add_run,
    expert_shape,
    number,
    whole,
)
from rollq.commands.parser import Commands
from rollq.commands.progress import open_progress
from rollq.errors import FailureClass, SettingsError
from rollq.job import QUEUE, Purpose
from rollq.ledger.constants import OWN_BUDGETS
from rollq.ledger.replies import Submission


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "submit",
        description="Submits a group of --size jobs for each task. Repeating the line submits nothing twice.",
    )
    run_file.add(parser)
    add_run(parser)
    play.add_tasks(parser, split="train", size=1)
    parser.add_argument("--epochs", type=whole(1), default=1, metavar="K", help="times through the tasks (%(default)s)")
    play.add_play(parser)
    _add_groups(parser)
    _add_order(parser)
    add_redis(parser)
    add_durability(parser)
    add_broker(parser)
    add_json(
        parser, "end stdout with one JSON object: run, groups, size, new, known, acked, sealed, with --refill: refilled"
    )
    parser.set_defaults(run=run)


def _add_groups(parser: argparse.ArgumentParser) -> None:
    add_purpose(parser, "train, or eval: groups that are never handed to a trainer (%(default)s)")
    parser.add_argument(
        "--spare",
        type=whole(0),
        default=0,
        metavar="M",
        help="play M samples more than --size of each group, and end those that are left when --size are graded"
        " (%(default)s)",
    )
    parser.add_argument(
        "--routed-experts",
        type=expert_shape,
        default={},
        metavar="LxKxE",
        help="record the experts that each token was routed to: layers, top-k and experts of the model, as in 48x8x128",
    )
    parser.add_argument(
        "--min-viable",
        type=whole(1),
        metavar="N",
        help="drop a group with dead jobs when fewer than N samples are graded (--size)",
    )
    parser.add_argument(
        "--budget",
        type=budgets,
        default={},
        metavar="CLASS=N,...",
        help=f"number of failures of a class that makes a job dead ({OWN_BUDGETS}); the first submission fixes it for"
        " the whole run",
    )


def _add_order(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ahead",
        type=whole(1),
        default=256,
        metavar="GROUPS",
        help="wait while this many groups are unacknowledged, over all producers of the run (%(default)s)",
    )
    parser.add_argument(
        "--groups-per-batch",
        type=whole(1),
        metavar="B",
        help="groups that a training step takes; with --max-staleness, groups wait until they cannot become too old",
    )
    parser.add_argument(
        "--max-staleness",
        type=whole(0),
        metavar="S",
        help="most steps that the policy may be ahead of the one under which a group began; 0: on policy",
    )
    parser.add_argument(
        "--max-running", type=whole(1), metavar="N", help="with --max-staleness: most groups that are being played"
    )
    parser.add_argument(
        "--keep",
        type=number(0, above=True),
        metavar="DAYS",
        help="forget acknowledged groups after so many days (as long as the run)",
    )
    parser.add_argument(
        "--refill",
        type=whole(0),
        default=0,
        metavar="N",
        help="afterwards, wait for these groups and replace each dropped one, up to N times a group (%(default)s)",
    )
    parser.add_argument(
        "--seal",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="afterwards, seal the run: it takes no more jobs, and its consumers end after the last groups",
    )


def budgets(text: str) -> dict[FailureClass, int]:
    """An argument type: `class=number,...`, as `Ledger.fix_budgets` takes them."""
    found: dict[FailureClass, int] = {}
    settable = [failure for failure in FailureClass if failure is not FailureClass.CANCELLED]
    for part in text.split(","):
        failure, _, count = (word.strip() for word in part.partition("="))
        if failure not in settable or failure in found or not re.fullmatch(r"[1-9][0-9]{0,8}", count):
            raise argparse.ArgumentTypeError(
                f"expected CLASS=N,... ({', '.join(settable)}: each at most once; N from 1 to 999999999), not {part!r}"
            )
        found[FailureClass(failure)] = int(count)
    return found


def run(args: argparse.Namespace) -> int:
    if (args.min_viable or 0) > args.size:
        raise SettingsError(f"--min-viable {args.min_viable} is more than --size {args.size}")
    if (args.groups_per_batch is None) != (args.max_staleness is None):
        raise SettingsError("--groups-per-batch and --max-staleness go together")
    if args.max_running is not None and args.max_staleness is None:
        raise SettingsError("--max-running needs --groups-per-batch and --max-staleness")
    job_flags.check_jobs(args, args.refill)
    refilled: Sequence[str] = ()
    with (
        job_flags.explain_interrupt(),
        open_client(args, args.run_name, budgets=args.budget, warn=True) as client,
        open_progress(sys.stderr) as progress,
    ):
        progress.say(job_flags.describe(args))
        jobs = job_flags.ShownJobs(args, progress)
        if jobs.groups > args.ahead:
            progress.say(f"waits whenever {args.ahead} groups are unacknowledged: keep `rollq pull` running")
        job_flags.pin_tokenizer(args, client)
        if args.keep is not None:
            client.keep(args.keep)
        if args.max_staleness is not None:
            client.admit(args.groups_per_batch, args.max_staleness, args.max_running)
            progress.say("waits whenever groups would become too old: keep the trainer publishing its steps")
        done = client.submit(jobs, ahead=args.ahead, source=job_flags.source_name(args))
        if args.refill:
            progress.say("waits until the groups are settled, to replace dropped ones: keep `rollq worker` running")
            refilled = client.refill(job_flags.jobs(args), times=args.refill, ahead=args.ahead).new
        if args.seal:
            client.seal()
        broker_error = client.broker_error
    if broker_error:
        print(
            f"rollq: warning: the broker takes no messages ({broker_error}): the workers publish the jobs instead;"
            " do the workers use the same --broker?",
            file=sys.stderr,
        )
    report(args, jobs.groups, done, len(refilled))
    return 0


def report(args: argparse.Namespace, groups: int, done: Submission, refilled: int) -> None:
    new, known, acked = len(done.new), len(done.known), len(done.acked)
    if args.json:
        said = {"run": args.run_name, "groups": groups, "size": args.size, "new": new, "known": known, "acked": acked}
        print(json.dumps({**said, **({"refilled": refilled} if args.refill else {}), "sealed": args.seal}))
        return
    counts = f"{new} jobs submitted, {known} known already" + (f", {acked} acknowledged already" if acked else "")
    print(f"run {args.run_name}: {groups} groups of {args.size}: {counts}")
    if refilled:
        print(f"      {refilled} jobs in place of dropped groups")
    worker = "rollq worker" + ("" if args.queue == QUEUE else f" --queues {args.queue}")
    worker += f" --env {args.env.given}" if args.env.given != args.env else ""
    worker += f" --agent {args.agent[0].given}" if args.agent[0].given != args.agent[0] else ""
    worker += f" --tokenizer {args.tokenizer}" if args.tokenizer else ""
    worker += f" --template {args.template}" if args.template else ""
    print(f"next: {worker:<34}  # plays them; start as many as you like, on any machine")
    print(f"      rollq stats --run {args.run_name}")
    purpose = "" if args.purpose is Purpose.TRAIN else f" --purpose {args.purpose}"
    print(f"      rollq pull --run {args.run_name} --groups {groups}{purpose} --out {args.run_name}.jsonl")
    if not args.seal:
        print("      the same line with --seal, when all jobs are submitted: consumers end after the last groups")
