"""`rollq dead`: the jobs of a run that ended without a grade, and why. Also how its sisters choose among them."""

import argparse
import json
from collections.abc import Callable, Sequence

from rollq.client import Client
from rollq.commands.addresses import client
from rollq.commands.arguments import Commands, add_json, add_redis, name
from rollq.errors import FailureClass, RollqError, SettingsError
from rollq.job import parse_id
from rollq.patience import patiently
from rollq.replies import DeadLetter
from rollq.transcript import clean

LONGEST = 100
"""Characters of a reason in the table."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "dead",
        help="list the jobs that ended without a grade",
        description="Lists a run's dead jobs, the latest first: class of the failure, attempts, turns in the journal,"
        " age, last worker, reason. `rollq show JOB` tells all of one; `rollq requeue` plays them again.",
    )
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    add_class(parser)
    add_redis(parser)
    add_json(parser, "print one JSON array: job, class, reason, attempts, turn, age_s, worker")
    parser.set_defaults(run=run)


def add_class(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--class",
        dest="failure",
        type=FailureClass,
        choices=list(FailureClass),
        metavar="CLASS",
        help="only those of one class: " + ", ".join(FailureClass),
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The flags that choose dead jobs: some by id, all of a class, or all."""
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    add_class(parser)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="RUN/GROUP/SAMPLE (all dead jobs)")
    add_redis(parser)


def chosen(args: argparse.Namespace, connected: Client) -> list[str]:
    """The ids that the flags choose. Raises SettingsError."""
    if args.jobs and getattr(args, "failure", None):
        raise SettingsError("name jobs or a class, not both")
    for job_id in args.jobs:
        if parse_id(job_id)[0] != args.run_name:
            raise SettingsError(f"job {job_id} is not of run {args.run_name}")
    return args.jobs or connected.letters.ids(args.failure)


def each(args: argparse.Namespace, ids: Sequence[str], act: Callable[[str], None], verb: str) -> int:
    """Does that to every job and reports. Fails when a job that was named could not have it."""
    done, refused = 0, {}
    for job_id in ids:
        try:
            patiently(lambda job_id=job_id: act(job_id))  # type: ignore[misc]
            done += 1
        except RollqError as e:  # also of a name that no job can have
            refused[job_id] = str(e)
    if args.json:
        print(json.dumps({"run": args.run_name, verb: done, "refused": refused}))
    else:
        for why in refused.values():
            print(clean(why))
        print(f"run {args.run_name}: {done} {verb}" + (f", {len(refused)} not" if refused else ""))
    return 1 if refused and args.jobs else 0


def run(args: argparse.Namespace) -> int:
    with client(args, args.run_name) as connected:
        letters = [letter for letter in connected.dead(None) if args.failure in (None, letter.failure)]
    if args.json:
        print(json.dumps([record(letter) for letter in letters]))
    elif letters:
        print("\n".join(table(letters)))
    else:
        print(f"run {args.run_name}: no dead jobs" + (f" of class {args.failure}" if args.failure else ""))
    return 0


def record(letter: DeadLetter) -> dict[str, object]:
    return {
        "job": letter.job_id,
        "class": letter.failure,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "turn": letter.turns,
        "age_s": round(letter.age_s, 1),
        "worker": letter.worker,
    }


def table(letters: Sequence[DeadLetter]) -> list[str]:
    """A line a job, under a head."""
    rows = [("JOB", "CLASS", "ATTEMPTS", "TURN", "AGE", "WORKER", "REASON")]
    for letter in letters:
        numbers = str(letter.attempts), str(letter.turns), age(letter.age_s)
        names = clean(letter.job_id), letter.failure, *numbers, clean(letter.worker or "-")
        rows.append((*names, first_line(letter.reason)))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return ["  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[6]]) for row in rows]


def first_line(reason: str) -> str:
    """Of a failure's reason: the rest is its traceback."""
    line = clean(next(iter(reason.strip().splitlines()), "-"))
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def age(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
