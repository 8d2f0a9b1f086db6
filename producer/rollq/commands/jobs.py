"""`rollq jobs`: lists the jobs that ended without a grade, plays them again, deletes them, and ends
others.
"""

import argparse
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from rollq.commands.connect import check_run, open_run, settings
from rollq.commands.flags.parser import Commands, Parser
from rollq.commands.flags.shared import add_json, add_redis
from rollq.commands.flags.types import name, one_of
from rollq.commands.tables import age, columns, first_line
from rollq.errors import FailureClass, RollqError, SettingsError
from rollq.export.transcript import clean
from rollq.job import parse_id
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import DeadLetter
from rollq.servers.retry import retry


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "jobs",
        description="A dead job is one that ended without a grade. It stays until it is played "
        "again or deleted.",
    )
    kinds = parser.add_commands(title="commands")
    _add_list(kinds)
    _add_requeue(kinds)
    _add_drop(kinds)
    _add_cancel(kinds)


def _add_list(commands: Commands) -> None:
    parser = commands.add_parser(
        "list",
        help="list the dead jobs of a run, and why they are dead",
        description="Lists a run's dead jobs, the latest first: class of the failure, attempts, "
        "turns in the journal, age, last worker, reason. `rollq show JOB` shows one in full; "
        "`rollq jobs requeue` plays them again.",
    )
    parser.add_argument("targets", type=name, nargs=1, metavar="RUN")
    _add_class(parser)
    add_redis(parser)
    add_json(parser, "print one JSON array: job, class, reason, attempts, turn, age_s, worker")
    parser.set_defaults(run=_list)


def _add_requeue(commands: Commands) -> None:
    parser = commands.add_parser(
        "requeue",
        help="play dead jobs again",
        description="Queues dead jobs again, with no failures and an empty journal; the old "
        "journal is set aside. Takes the named jobs, those of a run and class, or all of a run. A "
        "group that was dropped comes back. A job is refused when its group is ready or handed out "
        "without it.",
    )
    _add_targets(parser, "all dead jobs of a run, or the named ones")
    _add_class(parser)
    add_redis(parser)
    add_json(parser, "print one JSON object: run, requeued, refused (job: why)")
    parser.set_defaults(run=_requeue)


def _add_drop(commands: Commands) -> None:
    parser = commands.add_parser(
        "drop",
        help="delete what dead jobs hold, or a whole run",
        description="Deletes the data of dead jobs (body, journals, traceback) for good: of the "
        "named jobs, those of a run and class, or all of a run. They stay counted as dead. With "
        "--whole-run, deletes everything of the run.",
    )
    _add_targets(parser, "all dead jobs of a run, or the named ones")
    _add_class(parser)
    parser.add_argument(
        "--whole-run", action="store_true", help="delete all jobs, groups and results of the run"
    )
    parser.add_argument("--yes", action="store_true", help="confirm --whole-run")
    add_redis(parser)
    add_json(
        parser,
        "print one JSON object: run, dropped, refused (job: why); with --whole-run: run, keys",
    )
    parser.set_defaults(run=_drop)


def _add_cancel(commands: Commands) -> None:
    parser = commands.add_parser(
        "cancel",
        help="end jobs that are queued or being played",
        description="Ends jobs as dead, of class cancelled: the named ones, or all of a run that "
        "have not ended. A worker that plays one stops within seconds.",
    )
    _add_targets(parser, "with --all, all jobs of a run that have not ended; or the named ones")
    parser.add_argument(
        "--all", action="store_true", help="confirm that all jobs of the run shall end"
    )
    add_redis(parser)
    add_json(
        parser, "print one JSON object: run, cancelled, refused (job: why; with --all, group: why)"
    )
    parser.set_defaults(run=_cancel)


def target(text: str) -> str:
    """An argument type: a run, or a job as `run/group/sample`."""
    if "/" not in text:
        return name(text)
    try:
        parse_id(text)
    except RollqError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    return text


def _add_targets(parser: Parser, help: str) -> None:
    parser.add_argument(
        "targets", type=target, nargs="+", metavar="RUN|JOB", help=help + " (RUN/GROUP/SAMPLE)"
    )


def _add_class(parser: Parser) -> None:
    parser.add_argument(
        "--class",
        dest="failure",
        type=one_of(FailureClass),
        metavar="CLASS",
        help="only jobs of this class: " + ", ".join(FailureClass),
    )


def _run_and_jobs(args: argparse.Namespace) -> tuple[str, list[str]]:
    """The run, and the jobs of it that are named; none when the run is. Raises SettingsError."""
    runs = {target.partition("/")[0] for target in args.targets}
    jobs = [target for target in args.targets if "/" in target]
    if len(runs) > 1 or (jobs and len(jobs) < len(args.targets)):
        raise SettingsError(f"name one run, or jobs of one run, not {' '.join(args.targets)}")
    if jobs and getattr(args, "failure", None):
        raise SettingsError("name jobs or a class, not both")
    return runs.pop(), jobs


def _list(args: argparse.Namespace) -> int:
    run, _ = _run_and_jobs(args)
    with open_run(args, run) as reader:
        dead = [job for job in reader.dead(None) if args.failure in (None, job.failure)]
    if args.json:
        print(json.dumps([_record(job) for job in dead]))
    elif dead:
        print("\n".join(_table(dead)))
    else:
        print(f"run {run}: no dead jobs" + (f" of class {args.failure}" if args.failure else ""))
    return 0


def _requeue(args: argparse.Namespace) -> int:
    run, jobs = _run_and_jobs(args)
    with open_run(args, run) as reader:
        letters = DeadLetters(reader.redis, run)
        tokens: defaultdict[str, str] = defaultdict(lambda: uuid.uuid4().hex)
        return _act_on_each(
            args,
            run,
            jobs or letters.ids(args.failure),
            lambda job_id: letters.requeue(job_id, tokens[job_id]),
            "requeued",
        )


def _drop(args: argparse.Namespace) -> int:
    run, jobs = _run_and_jobs(args)
    if args.whole_run and (jobs or args.failure):
        raise SettingsError("--whole-run deletes everything: name no jobs and no class")
    # Deleting a run that was deleted half-way goes on, although it is not listed any more.
    with open_run(args, run, must_exist=not (args.whole_run and args.yes)) as reader:
        if args.whole_run:
            return _whole_run(args, reader)
        letters = DeadLetters(reader.redis, run)
        return _act_on_each(
            args, run, jobs or letters.ids(args.failure), letters.discard, "dropped"
        )


def _whole_run(args: argparse.Namespace, reader: LedgerReader) -> int:
    run = reader.run
    if not args.yes:
        counts = reader.stats()
        raise SettingsError(
            f"run {run} has {counts['queued']} jobs queued, {counts['leased']} being played, "
            f"{counts['done']} done ({counts['delivered']} delivered), {counts['dead']} dead: add "
            "--yes to delete them all"
        )
    keys = retry(DeadLetters(reader.redis, run).forget_run)
    if not keys:
        check_run(reader.redis, run, settings(args).redis_url)
    if args.json:
        print(json.dumps({"run": run, "keys": keys}))
    else:
        print(f"run {run}: {keys} keys deleted")
    return 0


def _cancel(args: argparse.Namespace) -> int:
    run, jobs = _run_and_jobs(args)
    if bool(jobs) == args.all:
        raise SettingsError(
            f"name the jobs to cancel, or all of a run: rollq jobs cancel {run} --all"
        )
    with open_run(args, run) as reader:
        letters = DeadLetters(reader.redis, run)
        if args.all:
            return _act_on_each(args, run, letters.open_groups(), letters.cancel_group, "cancelled")
        return _act_on_each(args, run, jobs, letters.cancel, "cancelled")


def _act_on_each(
    args: argparse.Namespace,
    run: str,
    names: Sequence[str],
    act: Callable[[str], int | None],
    verb: str,
) -> int:
    """Acts on every job, or group with so many jobs, and reports. The exit code is 1 when a job
    that was named is refused.
    """
    done = 0
    refused = {}
    for target in names:
        try:
            count = retry(partial(act, target))
            done += 1 if count is None else count
        except RollqError as e:
            refused[target] = str(e)
    if args.json:
        print(json.dumps({"run": run, verb: done, "refused": refused}))
    else:
        for why in refused.values():
            print(clean(why))
        print(f"run {run}: {done} {verb}" + (f", {len(refused)} not" if refused else ""))
    return 1 if refused and "/" in args.targets[0] else 0


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
