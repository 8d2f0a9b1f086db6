"""`rollq submit`: puts the jobs of a list of tasks on a run. Repeating it changes nothing."""

import argparse
import json
import re
import sys
from collections.abc import Sequence

from rollq.commands import job_flags, run_file
from rollq.commands.connect import client
from rollq.commands.flags import Commands, add_broker, add_json, add_redis, name, whole
from rollq.commands.progress import open_progress
from rollq.errors import FailureClass, SettingsError
from rollq.job import Purpose
from rollq.ledger.replies import Submission


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "submit",
        help="put jobs on a run",
        description="Submits the samples of each task, a group a task. The same line again submits nothing twice.",
    )
    run_file.add(parser)
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    job_flags.add_tasks(parser, split="train", size=1)
    parser.add_argument("--epochs", type=whole(1), default=1, metavar="K", help="times through the tasks (%(default)s)")
    job_flags.add_play(parser)
    _add_groups(parser)
    _add_course(parser)
    add_redis(parser)
    add_broker(parser)
    add_json(parser, "end stdout with one JSON object: run, groups, size, new, known, sealed, with --refill: refilled")
    parser.set_defaults(run=run)


def _add_groups(parser: argparse.ArgumentParser) -> None:
    """The flags of what a group is for, and when it counts."""
    parser.add_argument(
        "--purpose",
        type=Purpose,
        choices=list(Purpose),
        default=Purpose.TRAIN,
        help="train, or eval: never handed to a trainer (%(default)s)",
    )
    parser.add_argument(
        "--min-viable",
        type=whole(1),
        metavar="N",
        help="graded samples below which a group with dead members is dropped (--size)",
    )
    parser.add_argument(
        "--budget",
        type=budgets,
        default={},
        metavar="CLASS=N,...",
        help="failures of a class that make a job dead, for the whole run"
        " (engine=5,user=5,worker=5,env=2,job=2); fixed by its first submission",
    )


def _add_course(parser: argparse.ArgumentParser) -> None:
    """The flags of when groups are submitted, and what comes after."""
    parser.add_argument(
        "--ahead",
        type=whole(1),
        default=256,
        metavar="GROUPS",
        help="wait while this many groups are not acknowledged (%(default)s)",
    )
    parser.add_argument(
        "--refill",
        type=whole(0),
        default=0,
        metavar="N",
        help="wait until these groups are settled, and replace each dropped one, up to N times (%(default)s)",
    )
    parser.add_argument(
        "--seal",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="afterwards, say that nobody adds to the run any more: consumers then get its short last"
        " batch and come to an end",
    )


def budgets(text: str) -> dict[FailureClass, int]:
    """`class=number,...`, as `Ledger.fix_budgets` takes them."""
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
    job_flags.check(args, args.refill)
    groups = len(args.tasks) * args.epochs
    refilled: Sequence[str] = ()
    with (
        job_flags.restartable(),
        client(args, args.run_name, budgets=args.budget, warn=True) as connected,
        open_progress(sys.stderr) as progress,
    ):
        progress.say(job_flags.line(args))
        if groups > args.ahead:
            progress.say(f"waits whenever {args.ahead} groups are not acknowledged: have `rollq pull` running")
        jobs = job_flags.watched(job_flags.jobs(args), groups, progress)
        done = connected.submit(jobs, ahead=args.ahead, source=job_flags.source(args))
        if args.refill:
            progress.say("waits until its groups are settled, to replace dropped ones: have `rollq worker` running")
            refilled = connected.refill(job_flags.jobs(args), times=args.refill, ahead=args.ahead).new
        if args.seal:
            connected.seal()
        broker_error = connected.broker_error
    if broker_error:
        print(
            f"rollq: warning: the broker takes no messages ({broker_error}): the workers publish the jobs in its place;"
            " is --broker theirs?",
            file=sys.stderr,
        )
    report(args, groups, done, len(refilled))
    return 0


def report(args: argparse.Namespace, groups: int, done: Submission, refilled: int) -> None:
    """What was done, and what to do next."""
    new, known = len(done.new), len(done.known)
    if args.json:
        said = {"run": args.run_name, "groups": groups, "size": args.size, "new": new, "known": known}
        print(json.dumps({**said, **({"refilled": refilled} if args.refill else {}), "sealed": args.seal}))
        return
    print(f"run {args.run_name}: {groups} groups of {args.size}: {new} jobs submitted, {known} known already")
    if refilled:
        print(f"      {refilled} jobs in place of dropped groups")
    print("next: rollq worker                       plays them; as many as you like, anywhere")
    print(f"      rollq stats --run {args.run_name}")
    purpose = "" if args.purpose is Purpose.TRAIN else f" --purpose {args.purpose}"
    print(f"      rollq pull --run {args.run_name} --groups {groups}{purpose} --out {args.run_name}.jsonl")
    if not args.seal:
        print("      the same line with --seal, when nobody adds to the run any more: consumers then come to an end")
