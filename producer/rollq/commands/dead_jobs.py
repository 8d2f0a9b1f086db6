"""`rollq dead`, `requeue`, `drop` and `cancel`: jobs that ended without a grade, and what to do about them."""

import argparse
import json
from collections.abc import Callable, Sequence

from rollq.client.client import Client
from rollq.commands.connect import client
from rollq.commands.flags import Commands, add_json, add_redis, name
from rollq.errors import FailureClass, RollqError, SettingsError
from rollq.export.transcript import clean
from rollq.job import parse_id
from rollq.ledger.replies import DeadLetter
from rollq.ledger.retry import retry

LONGEST = 100
"""Characters of a reason in the table."""


def add(commands: Commands) -> None:
    _add_dead(commands)
    _add_requeue(commands)
    _add_drop(commands)
    _add_cancel(commands)


def _add_dead(commands: Commands) -> None:
    parser = commands.add_parser(
        "dead",
        help="list the jobs that ended without a grade",
        description="Lists a run's dead jobs, the latest first: class of the failure, attempts, turns in the journal,"
        " age, last worker, reason. `rollq show JOB` tells all of one; `rollq requeue` plays them again.",
    )
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    _add_class(parser)
    add_redis(parser)
    add_json(parser, "print one JSON array: job, class, reason, attempts, turn, age_s, worker")
    parser.set_defaults(run=_dead)


def _add_requeue(commands: Commands) -> None:
    parser = commands.add_parser(
        "requeue",
        help="play dead jobs again",
        description="Gives dead jobs a fresh start: no failures, an empty journal; the old one is set aside. Those that"
        " are named, those of a class, or all. A dropped group comes back with its member; a group that is handed out"
        " without it, or is about to be, stays as it is.",
    )
    _add_choice(parser)
    add_json(parser, "print one JSON object: run, requeued, refused (job: why)")
    parser.set_defaults(run=_requeue)


def _add_drop(commands: Commands) -> None:
    parser = commands.add_parser(
        "drop",
        help="delete dead jobs, or a whole run",
        description="Deletes what dead jobs hold (body, journals, traceback), for good: those that are named, those of"
        " a class, or all. They stay counted as dead. With --whole-run everything of the run is deleted.",
    )
    _add_choice(parser)
    parser.add_argument("--whole-run", action="store_true", help="delete the run: all its jobs, groups and results")
    parser.add_argument("--yes", action="store_true", help="really delete the whole run")
    add_json(parser, "print one JSON object: run, dropped, refused (job: why); with --whole-run: run, keys")
    parser.set_defaults(run=_drop)


def _add_cancel(commands: Commands) -> None:
    parser = commands.add_parser(
        "cancel",
        help="end jobs that are queued or being played",
        description="The jobs are dead at once, of class cancelled; a worker that plays one stops within seconds. Their"
        " groups settle as with any dead member.",
    )
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="RUN/GROUP/SAMPLE")
    parser.add_argument("--all", action="store_true", help="every job of the run that has not ended")
    add_redis(parser)
    add_json(parser, "print one JSON object: run, cancelled, refused (job: why)")
    parser.set_defaults(run=_cancel)


def _add_class(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--class",
        dest="failure",
        type=FailureClass,
        choices=list(FailureClass),
        metavar="CLASS",
        help="only those of one class: " + ", ".join(FailureClass),
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    """The flags that choose dead jobs: some by id, all of a class, or all."""
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    _add_class(parser)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="RUN/GROUP/SAMPLE (all dead jobs)")
    add_redis(parser)


def _dead(args: argparse.Namespace) -> int:
    with client(args, args.run_name) as connected:
        letters = [letter for letter in connected.dead(None) if args.failure in (None, letter.failure)]
    if args.json:
        print(json.dumps([_record(letter) for letter in letters]))
    elif letters:
        print("\n".join(_table(letters)))
    else:
        print(f"run {args.run_name}: no dead jobs" + (f" of class {args.failure}" if args.failure else ""))
    return 0


def _requeue(args: argparse.Namespace) -> int:
    with client(args, args.run_name) as connected:
        return _each(args, _chosen(args, connected), connected.letters.requeue, "requeued")


def _drop(args: argparse.Namespace) -> int:
    if args.whole_run and (args.jobs or args.failure):
        raise SettingsError("--whole-run deletes everything: name no jobs and no class")
    with client(args, args.run_name) as connected:
        if args.whole_run:
            return _whole_run(args, connected)
        return _each(args, _chosen(args, connected), connected.letters.discard, "dropped")


def _whole_run(args: argparse.Namespace, connected: Client) -> int:
    if not args.yes:
        counts = connected.stats()
        raise SettingsError(
            f"run {args.run_name} has {counts['queued']} jobs queued, {counts['leased']} being played, {counts['done']}"
            f" done ({counts['delivered']} delivered), {counts['dead']} dead: add --yes to delete them all"
        )
    keys = retry(connected.letters.forget_run)
    print(
        json.dumps({"run": args.run_name, "keys": keys}) if args.json else f"run {args.run_name}: {keys} keys deleted"
    )
    return 0


def _cancel(args: argparse.Namespace) -> int:
    if bool(args.jobs) == args.all:
        raise SettingsError("name the jobs to cancel, or say --all")
    with client(args, args.run_name) as connected:
        ids = _chosen(args, connected) if args.jobs else [*connected.letters.unfinished()]
        return _each(args, ids, connected.letters.cancel, "cancelled")


def _chosen(args: argparse.Namespace, connected: Client) -> list[str]:
    """The ids that the flags choose. Raises SettingsError."""
    if args.jobs and getattr(args, "failure", None):
        raise SettingsError("name jobs or a class, not both")
    for job_id in args.jobs:
        if parse_id(job_id)[0] != args.run_name:
            raise SettingsError(f"job {job_id} is not of run {args.run_name}")
    return args.jobs or connected.letters.ids(args.failure)


def _each(args: argparse.Namespace, ids: Sequence[str], act: Callable[[str], None], verb: str) -> int:
    """Does that to every job and reports. Fails when a job that was named could not have it."""
    done, refused = 0, {}
    for job_id in ids:
        try:
            retry(lambda job_id=job_id: act(job_id))  # type: ignore[misc]
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


def _record(letter: DeadLetter) -> dict[str, object]:
    return {
        "job": letter.job_id,
        "class": letter.failure,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "turn": letter.turns,
        "age_s": round(letter.age_s, 1),
        "worker": letter.worker,
    }


def _table(letters: Sequence[DeadLetter]) -> list[str]:
    """A line a job, under a head."""
    rows = [("JOB", "CLASS", "ATTEMPTS", "TURN", "AGE", "WORKER", "REASON")]
    for letter in letters:
        numbers = str(letter.attempts), str(letter.turns), _age(letter.age_s)
        names = clean(letter.job_id), letter.failure, *numbers, clean(letter.worker or "-")
        rows.append((*names, first_line(letter.reason)))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return ["  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[6]]) for row in rows]


def first_line(reason: str) -> str:
    """Of a failure's reason: the rest is its traceback."""
    line = clean(next(iter(reason.strip().splitlines()), "-"))
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
