"""`rollq show`: one trajectory, turn by turn, from the ledger or from an exported file."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rollq.commands.connect import check_run, open_client, open_redis, settings
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_json, add_redis
from rollq.commands.flags.types import integer
from rollq.commands.tables import first_line
from rollq.errors import ContractError, SettingsError
from rollq.events import Observed, Sampled
from rollq.export import jsonl
from rollq.export.record import record
from rollq.export.transcript import Transcript, clean
from rollq.job import NAME, parse_id
from rollq.ledger.replies import JobState
from rollq.pip_extras import install_line
from rollq.snapshot.rollouts import RolloutReader
from rollq.trajectory import Trajectory

PAGES = "rollq.pages"
"""Entry point of a function that writes a rollout's page."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "show",
        description="Shows a job of a run (RUN/GROUP/SAMPLE), or a line of an exported file "
        "(FILE.jsonl:N; without N the first). An acknowledged job is no longer in Redis: look at "
        "the exported file.",
    )
    parser.add_argument("what", metavar="JOB|FILE[:N]")
    parser.add_argument(
        "--attempt",
        type=integer(1),
        metavar="N",
        help="show the journal of this failed attempt, which a later attempt set aside",
    )
    add_redis(parser)
    add_json(parser, "print one JSON object, as in an exported file")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="OUT",
        help="write a web page that needs nothing else to OUT: the page of `rollq view` for this "
        "rollout",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    place = parse_file_line(args.what)
    if args.html:
        return write_page(args, place)
    facts: Sequence[tuple[str, str]] = ()
    reason = ""
    if place:
        record = jsonl.read(*place)
    else:
        record, facts, reason = from_ledger(args)
    if args.json:
        print(json.dumps(record))
        return 0
    if reason:  # printed in full at the end
        info = dict(record.get("info") or {})
        info.pop("reason", None)
        record["info"] = info
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    try:
        for line in Transcript(record, colour=colour).lines(facts):
            print(line)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise ContractError(
            f"{args.what} is not an exported trajectory: {type(e).__name__} {e}"
        ) from e
    if reason:
        print(f"\nthe last failure of {args.what}:")
        print(clean(reason))
    return 0


def write_page(args: argparse.Namespace, place: tuple[Path, int] | None) -> int:
    """Writes the rollout's page. Raises RollqError."""
    write = page_writer()
    tokenizer = settings(args).tokenizer
    if place:
        write(args.html, jsonl.read(*place), None, tokenizer)
    else:
        with open_redis(args) as connection:
            run = run_of(args.what)
            check_run(connection, run, settings(args).redis_url)
            rollout = RolloutReader(connection, run).rollout(args.what, args.attempt)
        write(args.html, rollout, args.attempt, tokenizer)
    print(f"{args.html}: open it in a browser")
    return 0


def page_writer() -> Callable[..., None]:
    """The function of another package that writes it: see `rollq_view.commands.page_file`. Raises
    SettingsError.
    """
    for point in entry_points(group=PAGES):
        write: Callable[..., None] = point.load()
        return write
    raise SettingsError(f"--html needs rollq_view, which is not installed: {install_line('view')}")


def run_of(job_id: str) -> str:
    """The run of a job. Raises SettingsError."""
    try:
        return parse_id(job_id)[0]
    except ContractError as e:
        text = f"{job_id} is neither a file nor a job: "
        run, _, group = job_id.partition("/")
        if not (NAME.fullmatch(run) and NAME.fullmatch(group or run)):
            raise SettingsError(f"{text}{e}") from e
        if not group:
            raise SettingsError(
                f"{text}`rollq view --run {run}` shows a run of this name, `rollq show "
                f"{run}/GROUP/SAMPLE` one of its rollouts"
            ) from e
        raise SettingsError(
            f"{text}`rollq view --run {run}` shows that group of this name, `rollq show "
            f"{run}/{group}/0` one of its rollouts"
        ) from e


def parse_file_line(what: str) -> tuple[Path, int] | None:
    """The file and the number of the line, from 1. None when `what` names a job."""
    name, colon, number = what.rpartition(":")
    if colon and number.isdecimal() and os.path.isfile(name):
        return Path(name), int(number)
    if os.path.isfile(what):  # Path.is_file raises for a name that is too long
        return Path(what), 1
    if ".jsonl" in what:
        raise SettingsError(f"there is no file {what}")
    return None


def from_ledger(args: argparse.Namespace) -> tuple[dict[str, Any], Sequence[tuple[str, str]], str]:
    """A job's trajectory in the exported form, facts about the job, and its last failure with
    traceback.

    Raises RollqError.
    """
    with open_client(args, run_of(args.what), must_exist=True) as client:
        state = client.job(args.what)
        trajectory = client.trajectory(args.what, args.attempt)
    reason = state.reason if state.failures and args.attempt in (None, state.attempt) else ""
    return record(trajectory), job_facts(state, trajectory), reason


def job_facts(state: JobState, trajectory: Trajectory) -> list[tuple[str, str]]:
    """Facts that an exported line lacks: the job's state, earlier failures, and the times of the
    attempt.
    """
    worker = state.worker or "-"
    text = f"{state.state}, attempt {state.attempt}, worker {worker}, group {state.group_state}"
    facts = [("state", text)]
    if state.failures:
        counts = ", ".join(f"{count} {failure}" for failure, count in state.failures.items())
        facts.append(("failures", f"{counts}; the last one: {first_line(state.reason)}"))
    if state.set_aside:
        attempts = ", ".join(map(str, state.set_aside))
        facts.append(("journals", f"set aside: {attempts}; see one with --attempt N"))
    times = [event.at for event in trajectory.events if event.at]
    if times:
        facts.append(("times", _times(trajectory, times[0], times[-1])))
    return facts


def _times(trajectory: Trajectory, first: float, last: float) -> str:
    sampling = sum(event.seconds for event in trajectory.events if isinstance(event, Sampled))
    acting = sum(event.seconds for event in trajectory.events if isinstance(event, Observed))
    started = datetime.fromtimestamp(first).astimezone().isoformat(timespec="seconds")
    return f"{started}, {last - first:.1f} s: {sampling:.1f} s sampling, {acting:.1f} s acting"
