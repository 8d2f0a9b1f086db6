"""`rollq late`: the slowest members of the oldest open groups, and what each of them is waiting for."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rollq.client.waits import explain
from rollq.commands.connect import check_run, open_redis, settings
from rollq.commands.flags.shared import add_json, add_redis, add_run, whole
from rollq.commands.parser import Commands
from rollq.commands.tables import age, columns
from rollq.export.transcript import clean
from rollq.job import Purpose
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import State
from rollq.ledger.unfinished import OpenGroup, UnfinishedJob, oldest_open_groups

GROUPS = 5
"""Default number of groups."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "late",
        description="Shows the unfinished members of the oldest open groups, those that are being played the longest"
        " first: worker, turn, and what the episode is waiting for (engine, user, environment, queue) and how long.",
    )
    add_run(parser)
    parser.add_argument(
        "--groups", type=whole(1), default=GROUPS, metavar="N", help=f"number of groups, the oldest first ({GROUPS})"
    )
    add_redis(parser)
    add_json(parser, "print one JSON object: run, groups (each with its jobs), waits")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with open_redis(args) as connection:
        reader = LedgerReader(connection, args.run_name)
        check_run(reader, settings(args).redis_url)
        groups = oldest_open_groups(reader, args.groups)
        waits = next(filter(None, (explain(reader, purpose, partly=True) for purpose in Purpose)), "")
    if args.json:
        print(json.dumps({"run": args.run_name, "groups": [asdict(group) for group in groups], "waits": waits}))
        return 0
    if not groups:
        print(f"run {args.run_name}: no group is open: nothing is queued or being played")
    for group in groups:
        print("\n".join(_described(group)))
    if waits:
        print(waits)
    elif any(job.state is State.LEASED for group in groups for job in group.jobs):
        print("`rollq show JOB` shows what a job has said and done so far")
    return 0


def _described(group: OpenGroup) -> list[str]:
    opened = "" if group.open_s is None else f", open for {age(group.open_s)}"
    if group.damage:
        return [f"group {clean(group.group)} ({group.purpose}): {clean(group.damage)}", ""]
    title = f"group {clean(group.group)} ({group.purpose}): {group.graded} of {group.size} graded{opened}"
    return [title, *(f"  {line}" for line in _table(group.jobs)), ""]


def _table(jobs: Sequence[UnfinishedJob]) -> list[str]:
    """A line for each job, and below it why its last attempt failed."""
    rows = [("JOB", "STATE", "ATTEMPT", "TURN", "PLAYED", "WORKER", "WAITS FOR")]
    for job in jobs:
        played = age(job.played_s) if job.state is State.LEASED else "-"
        waits = job.waits_for if job.waits_s is None else f"{job.waits_for} for {age(job.waits_s)}"
        numbers = str(job.attempt), str(job.turns), played
        rows.append((clean(job.job_id), job.state, *numbers, clean(job.worker or "-"), clean(waits)))
    found: list[str] = []
    title, *lines = columns(rows)
    for line, job in zip(lines, jobs, strict=True):
        found.append(line)
        if job.failures:
            times = "once" if job.failures == 1 else f"{job.failures} times"
            found.append(f"  failed {times}, last by {job.last_failure}")
    return [title, *found]
