"""`rollq stats`: the counts of a run, with its late groups if asked, or the list of runs."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rollq.commands.connect import check_run, open_redis, settings
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_json, add_redis, add_run
from rollq.commands.flags.types import integer
from rollq.commands.tables import age, columns
from rollq.commands.top.frame import one_line
from rollq.errors import LedgerError, SettingsError
from rollq.snapshot.fleet import each_run
from rollq.snapshot.holdups import run_holdup
from rollq.snapshot.late import LEASED, LateGroup, LateJob, late_groups
from rollq.snapshot.rollouts import RolloutReader

ROWS = {
    "jobs": ("submitted", "queued", "leased", "done", "dead", "surplus"),
    "groups": (
        "groups_open",
        "groups_ready",
        "groups_held",
        "groups_acked",
        "groups_skipped",
        "groups_dropped",
    ),
    "delivery": ("delivered", "redelivered", "resubmitted", "fenced"),
    "work": ("turns", "sampled_tokens", "total_tokens"),
}
"""Counts by subject, in the order in which they are printed."""


LATE = 5
"""Default number of late groups."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "stats",
        description="Prints the counts of a run; without --run, of all runs. With --late, also the "
        "unfinished members of the oldest open groups, those that are being played the longest "
        "first: worker, turn, and what the episode is waiting for (engine, user, environment, "
        "queue) and how long.",
    )
    add_run(parser, required=False, help="name of the run (all runs)")
    parser.add_argument(
        "--late",
        type=integer(1),
        nargs="?",
        const=LATE,
        metavar="N",
        help=f"show what the N oldest open groups are waiting for ({LATE})",
    )
    add_redis(parser)
    add_json(
        parser,
        "print one JSON object, with --late also its groups; without --run, one for each run, by "
        "name",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.late and args.run_name is None:
        raise SettingsError("--late is of one run: pass --run")
    with open_redis(args) as connection:
        if args.run_name is None:
            return _list(connection, args.json)
        reader = RolloutReader(connection, args.run_name)
        check_run(connection, args.run_name, settings(args).redis_url)
        fleet = reader.fleet(args.late or 1)
        groups = late_groups(reader, fleet, args.late) if args.late else None
    (one,) = fleet.runs
    counts: dict[str, Any] = {
        **one.counts,
        "seconds": dict(one.seconds),
        "waits": run_holdup(fleet),
    }
    if args.json:
        late = {} if groups is None else {"late": [asdict(group) for group in groups]}
        print(json.dumps({**counts, **late}))
        return 0
    print("\n".join([*table(counts), *([] if groups is None else _late(groups))]))
    return 0


def _list(connection: Any, as_json: bool) -> int:
    """Prints all runs, one per line. A run that cannot be read is an error, and the others are
    still printed.
    """
    by_run: dict[str, Any] = {}
    unreadable = 0
    for run, _, counts in each_run(connection):
        if isinstance(counts, LedgerError):
            unreadable = 1
            print(f"rollq: {counts}", file=sys.stderr)
        else:
            by_run[run] = counts
    if as_json:
        print(json.dumps(by_run))
    elif not by_run and not unreadable:
        print("no runs yet: see rollq submit")
    else:
        width = max(map(len, by_run), default=0)
        for run, counts in by_run.items():
            print(f"{run:<{width}}  " + "  ".join(f"{counts[key]} {key}" for key in ROWS["jobs"]))
    return unreadable


def table(counts: Mapping[str, Any]) -> list[str]:
    """The counts as text, one subject per line."""
    state = "sealed" if counts["sealed"] else "open for more"
    lines = [f"run       {counts['run']}, {state}"]
    for subject, keys in ROWS.items():
        cells = [f"{counts[key]} {key.removeprefix('groups_')}" for key in keys]
        lines.append(f"{subject:<9} {'   '.join(cells)}")
    if counts["policy"] or counts["admission"]:
        lines.append(f"policy    {_policy(counts['policy'], counts['admission'])}")
    lines.append(f"fidelity  {_fidelity(counts)}")
    if counts["changed_prompts"]:
        lines.append(
            f"prompts   {counts['changed_prompts']} of {counts['traces']} traces begin because the "
            "system prompt changes: `rollq show JOB` has the words (system_prompt)"
        )
    lines.append(f"reward    {_mean(counts['reward_mean'])} mean")
    lines += _times(counts["seconds"])
    for subject in ("stops", "failures", "skips"):
        if counts[subject]:
            cells = [f"{number} {name}" for name, number in counts[subject].items()]
            lines.append(f"{subject:<9} {'   '.join(cells)}")
    if counts["waits"]:
        lines.append(f"waits     {one_line(counts['waits'])}")
    return lines


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _times(seconds: Mapping[str, float]) -> list[str]:
    total = sum(seconds.values())
    if not total:
        return []
    shares = [f"{spent / total:.1%} {what}" for what, spent in seconds.items()]
    return [f"time      {'   '.join(shares)}   of {total:,.0f} s of episodes"]


def _policy(published: Mapping[str, Any] | None, admission: Mapping[str, Any] | None) -> str:
    text = "none published"
    if published:
        text = f"step {published['step']}, version {published['weight_version']}"
    if admission is None:
        return text
    running = f", {admission['max_running']} running" if admission["max_running"] else ""
    return (
        f"{text}   max staleness {admission['max_staleness']}   {admission['groups_per_batch']} "
        f"groups a batch{running}   {admission['trained']} trained   capacity "
        f"{admission['capacity']}"
    )


def _fidelity(counts: Mapping[str, Any]) -> str:
    ratio = counts["extension_ratio"]
    kept = "-" if ratio is None else f"{ratio:.1%}"
    return (
        f"{kept} of prompts kept   {counts['traces']} traces   "
        f"{counts['malformed_turns']} malformed   {counts['unclosed_turns']} unclosed turns   "
        f"{counts['drifted_turns']} of {counts['reencoded_turns']} turns drifted   "
        f"{counts['version_breaks']} version breaks"
    )


def _late(groups: Sequence[LateGroup]) -> list[str]:
    if not groups:
        return ["", "no group is open: nothing is queued or being played"]
    lines = [line for group in groups for line in ("", *_group_lines(group))]
    if any(job.state == LEASED for group in groups for job in group.jobs):
        lines += ["", "`rollq show JOB` shows what a job has said and done so far"]
    return lines


def _group_lines(group: LateGroup) -> list[str]:
    title = f"group {one_line(group.group)} ({group.purpose}): "
    if group.damage:
        return [title + one_line(group.damage)]
    title += f"{group.graded} of {group.size} graded"
    if group.open_s is not None:
        title += f", open for {age(group.open_s)}"
    return [title, *(f"  {line}" for line in _table(group.jobs))]


def _table(jobs: Sequence[LateJob]) -> list[str]:
    """A line for each job, and below it the reason for which its last attempt failed."""
    rows = [["JOB", "STATE", "ATTEMPT", "TURN", "PLAYED", "WORKER", "WAITS FOR"]]
    rows += map(_row, jobs)
    title, *lines = columns(rows)
    shown = [title]
    for line, job in zip(lines, jobs, strict=True):
        shown.append(line)
        if job.failures:
            times = "once" if job.failures == 1 else f"{job.failures} times"
            shown.append(f"  failed {times}, last by {job.last_failure}")
    return shown


def _row(job: LateJob) -> list[str]:
    waits = job.waits_for
    if job.waits_s is not None:
        waits += f" for {age(job.waits_s)}"
    return [
        one_line(job.job_id),
        job.state,
        str(job.attempt),
        str(job.turns),
        age(job.played_s) if job.state == LEASED else "-",
        one_line(job.worker or "-"),
        one_line(waits),
    ]
