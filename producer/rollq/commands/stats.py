"""`rollq stats`: the counts of a run, or the list of runs."""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from rollq.client.waits import holdup
from rollq.commands.connect import check_run, open_redis, settings
from rollq.commands.flags.shared import add_json, add_redis, add_run
from rollq.commands.parser import Commands
from rollq.errors import LedgerError
from rollq.ledger.reader import LedgerReader, runs
from rollq.ledger.workers.time_spent import time_spent

ROWS = {
    "jobs": ("submitted", "queued", "leased", "done", "dead", "surplus"),
    "groups": ("groups_open", "groups_ready", "groups_held", "groups_acked", "groups_skipped", "groups_dropped"),
    "delivery": ("delivered", "duplicates", "redelivered", "resubmitted", "fenced"),
    "work": ("turns", "sampled_tokens", "total_tokens"),
}
"""Counts by subject, in the order in which they are printed."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "stats",
        description="Prints the counts of a run; without --run, of all runs.",
    )
    add_run(parser, required=False, help="name of the run (all runs)")
    add_redis(parser)
    add_json(parser, "print one JSON object; without --run, one for each run, by name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with open_redis(args) as connection:
        if args.run_name is None:
            return _list(connection, args.json)
        reader = LedgerReader(connection, args.run_name)
        check_run(reader, settings(args).redis_url)
        counts = reader.stats()
        counts["seconds"] = time_spent(reader.scripts)
        counts["waits"] = holdup(reader)
    print(json.dumps(counts) if args.json else "\n".join(table(counts)))
    return 0


def _list(connection: Any, as_json: bool) -> int:
    """Prints all runs, one per line. A run that cannot be read is an error, and the others are still printed."""
    found, unreadable = {}, 0
    for run in runs(connection):
        try:
            found[run] = LedgerReader(connection, run).stats()
        except LedgerError as e:
            unreadable = 1
            print(f"rollq: {e}", file=sys.stderr)
    if as_json:
        print(json.dumps(found))
    elif not found and not unreadable:
        print("no runs yet: see rollq submit")
    else:
        width = max(map(len, found), default=0)
        for run, counts in found.items():
            print(f"{run:<{width}}  " + "  ".join(f"{counts[key]} {key}" for key in ROWS["jobs"]))
    return unreadable


def table(counts: Mapping[str, Any]) -> list[str]:
    """The counts as text, one subject per line."""
    mean = "-" if counts["reward_mean"] is None else f"{counts['reward_mean']:.3f}"
    lines = [f"run       {counts['run']}, {'sealed' if counts['sealed'] else 'open for more'}"]
    for subject, keys in ROWS.items():
        lines.append(f"{subject:<9} " + "   ".join(f"{counts[key]} {key.removeprefix('groups_')}" for key in keys))
    if counts["policy"] or counts["admission"]:
        lines.append(f"policy    {_policy(counts['policy'], counts['admission'])}")
    lines.append(f"fidelity  {_fidelity(counts)}")
    lines.append(f"reward    {mean} mean")
    if total := sum(counts["seconds"].values()):
        shares = "   ".join(f"{seconds / total:.1%} {what}" for what, seconds in counts["seconds"].items())
        lines.append(f"time      {shares}   of {total:,.0f} s of episodes")
    for subject in ("stops", "failures", "skips"):
        if counts[subject]:
            lines.append(f"{subject:<9} " + "   ".join(f"{n} {name}" for name, n in counts[subject].items()))
    if counts["waits"]:
        lines.append(f"waits     {counts['waits']}")
    return lines


def _policy(published: Mapping[str, Any] | None, admission: Mapping[str, Any] | None) -> str:
    text = f"step {published['step']}, version {published['weight_version']}" if published else "none published"
    if admission is None:
        return text
    running = f", {admission['max_running']} running" if admission["max_running"] else ""
    return (
        f"{text}   max staleness {admission['max_staleness']}   {admission['groups_per_batch']} groups a batch{running}"
        f"   {admission['trained']} trained   capacity {admission['capacity']}"
    )


def _fidelity(counts: Mapping[str, Any]) -> str:
    ratio = "-" if counts["extension_ratio"] is None else f"{counts['extension_ratio']:.1%}"
    turns = "   ".join(f"{counts[f'{what}_turns']} {what}" for what in ("malformed", "unclosed", "drifted")) + " turns"
    return f"{ratio} of prompts kept   {counts['traces']} traces   {turns}   {counts['version_breaks']} version breaks"
