"""`rollq dead`, `requeue`, `drop` and `cancel`: list, requeue and delete the jobs that ended without a grade."""

import argparse
import json
from collections.abc import Callable, Sequence

from rollq.client.client import Client, internals
from rollq.commands.connect import check_run, open_client, settings
from rollq.commands.flags.shared import Commands, add_json, add_redis, add_run, one_of
from rollq.errors import FailureClass, RollqError, SettingsError
from rollq.export.transcript import clean
from rollq.job import parse_id
from rollq.ledger.replies import DeadLetter
from rollq.servers.connection import retry

LONGEST = 100
"""Number of characters of a reason that the table shows."""


def add(commands: Commands) -> None:
    _add_dead(commands)
    _add_requeue(commands)
    _add_drop(commands)
    _add_cancel(commands)


def _add_dead(commands: Commands) -> None:
    parser = commands.add_parser(
        "dead",
        description="Lists a run's dead jobs, the latest first: class of the failure, attempts, turns in the journal,"
        " age, last worker, reason. `rollq show JOB` shows one in full; `rollq requeue` plays them again.",
    )
    add_run(parser)
    _add_class(parser)
    add_redis(parser)
    add_json(parser, "print one JSON array: job, class, reason, attempts, turn, age_s, worker")
    parser.set_defaults(run=_dead)


def _add_requeue(commands: Commands) -> None:
    parser = commands.add_parser(
        "requeue",
        description="Queues dead jobs again, with no failures and an empty journal; the old journal is set aside. Takes"
        " the named jobs, those of a class, or all. A group that was dropped comes back. A job is refused when its"
        " group is ready or handed out without it.",
    )
    _add_choice(parser)
    add_json(parser, "print one JSON object: run, requeued, refused (job: why)")
    parser.set_defaults(run=_requeue)


def _add_drop(commands: Commands) -> None:
    parser = commands.add_parser(
        "drop",
        description="Deletes the data of dead jobs (body, journals, traceback) for good: of the named jobs, those of a"
        " class, or all. They stay counted as dead. With --whole-run, deletes everything of the run.",
    )
    _add_choice(parser)
    parser.add_argument("--whole-run", action="store_true", help="delete all jobs, groups and results of the run")
    parser.add_argument("--yes", action="store_true", help="confirm --whole-run")
    add_json(parser, "print one JSON object: run, dropped, refused (job: why); with --whole-run: run, keys")
    parser.set_defaults(run=_drop)


def _add_cancel(commands: Commands) -> None:
    parser = commands.add_parser(
        "cancel",
        description="Ends jobs as dead, of class cancelled. A worker that plays one stops within seconds.",
    )
    add_run(parser)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="RUN/GROUP/SAMPLE")
    parser.add_argument("--all", action="store_true", help="all jobs of the run that have not ended")
    add_redis(parser)
    add_json(parser, "print one JSON object: run, cancelled, refused (job: why)")
    parser.set_defaults(run=_cancel)


def _add_class(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--class",
        dest="failure",
        type=one_of(FailureClass),
        metavar="CLASS",
        help="only jobs of this class: " + ", ".join(FailureClass),
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    _add_class(parser)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="RUN/GROUP/SAMPLE (all dead jobs)")
    add_redis(parser)


def _dead(args: argparse.Namespace) -> int:
    with open_client(args, args.run_name, known=True) as client:
        dead = [job for job in client.dead(None) if args.failure in (None, job.failure)]
    if args.json:
        print(json.dumps([_record(job) for job in dead]))
    elif dead:
        print("\n".join(_table(dead)))
    else:
        print(f"run {args.run_name}: no dead jobs" + (f" of class {args.failure}" if args.failure else ""))
    return 0


def _requeue(args: argparse.Namespace) -> int:
    with open_client(args, args.run_name, known=True) as client:
        return _act_on_each(args, _chosen(args, client), internals(client).dead_letters.requeue, "requeued")


def _drop(args: argparse.Namespace) -> int:
    if args.whole_run and (args.jobs or args.failure):
        raise SettingsError("--whole-run deletes everything: name no jobs and no class")
    # Deleting a run that was deleted half-way goes on, although it is not listed any more.
    with open_client(args, args.run_name, known=not (args.whole_run and args.yes)) as client:
        if args.whole_run:
            return _whole_run(args, client)
        return _act_on_each(args, _chosen(args, client), internals(client).dead_letters.discard, "dropped")


def _whole_run(args: argparse.Namespace, client: Client) -> int:
    if not args.yes:
        counts = client.stats()
        raise SettingsError(
            f"run {args.run_name} has {counts['queued']} jobs queued, {counts['leased']} being played, {counts['done']}"
            f" done ({counts['delivered']} delivered), {counts['dead']} dead: add --yes to delete them all"
        )
    if not (keys := retry(internals(client).dead_letters.forget_run)):
        check_run(internals(client).reader, settings(args).redis_url)
    print(
        json.dumps({"run": args.run_name, "keys": keys}) if args.json else f"run {args.run_name}: {keys} keys deleted"
    )
    return 0


def _cancel(args: argparse.Namespace) -> int:
    if bool(args.jobs) == args.all:
        raise SettingsError("name the jobs to cancel, or say --all")
    with open_client(args, args.run_name, known=True) as client:
        ids = _chosen(args, client) if args.jobs else [*internals(client).dead_letters.unfinished()]
        return _act_on_each(args, ids, internals(client).dead_letters.cancel, "cancelled")


def _chosen(args: argparse.Namespace, client: Client) -> list[str]:
    if args.jobs and getattr(args, "failure", None):
        raise SettingsError("name jobs or a class, not both")
    for job_id in args.jobs:
        if parse_id(job_id)[0] != args.run_name:
            raise SettingsError(f"job {job_id} is not of run {args.run_name}")
    return args.jobs or internals(client).dead_letters.ids(args.failure)


def _act_on_each(args: argparse.Namespace, ids: Sequence[str], act: Callable[[str], None], verb: str) -> int:
    """Acts on every job and reports. The exit code is 1 when a job that was named is refused."""
    done, refused = 0, {}
    for job_id in ids:
        try:
            retry(lambda job_id=job_id: act(job_id))  # type: ignore[misc]
            done += 1
        except RollqError as e:  # also for an invalid job id
            refused[job_id] = str(e)
    if args.json:
        print(json.dumps({"run": args.run_name, verb: done, "refused": refused}))
    else:
        for why in refused.values():
            print(clean(why))
        print(f"run {args.run_name}: {done} {verb}" + (f", {len(refused)} not" if refused else ""))
    return 1 if refused and args.jobs else 0


def _record(job: DeadLetter) -> dict[str, object]:
    return {
        "job": job.job_id,
        "class": job.failure,
        "reason": job.reason,
        "attempts": job.attempts,
        "turn": job.turns,
        "age_s": round(job.age_s, 1),
        "worker": job.worker,
    }


def _table(dead: Sequence[DeadLetter]) -> list[str]:
    rows = [("JOB", "CLASS", "ATTEMPTS", "TURN", "AGE", "WORKER", "REASON")]
    for job in dead:
        numbers = str(job.attempts), str(job.turns), age(job.age_s)
        names = clean(job.job_id), job.failure, *numbers, clean(job.worker or "-")
        rows.append((*names, first_line(job.reason)))
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text. Its last column may be of any width."""
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]


def first_line(reason: str) -> str:
    """The first line of a failure's reason; the rest is a traceback."""
    line = clean(next(iter(reason.strip().splitlines()), "-"))
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def age(seconds: float) -> str:
    """A time in its largest unit, such as `3.4m`."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
