"""`rollq audit --offline`: checks every trajectory of an exported file, without an engine and in
constant memory.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollq.commands.progress import open_progress
from rollq.errors import ContractError
from rollq.export import jsonl
from rollq.export.output import WrittenJobs
from rollq.export.transcript import clean
from rollq.export.validation import Checked

MOST_SHOWN = 20
"""Faulty trajectories that are named. The others are counted."""


@dataclass(slots=True)
class Findings:
    """Counts of a check, and its first faults."""

    trajectories: int = 0
    """All that were looked at, faulty ones included."""
    faulty: int = 0
    first: list[Checked] = field(default_factory=list)

    def add(self, checked: Checked) -> None:
        self.trajectories += 1
        if checked.faults:
            self.faulty += 1
            if len(self.first) < MOST_SHOWN:
                self.first.append(checked)

    def as_json(self, file: Path) -> dict[str, Any]:
        failures = [
            {"where": c.where, "job": c.job or None, "faults": c.faults} for c in self.first
        ]
        return {
            "file": str(file),
            "trajectories": self.trajectories,
            "faulty": self.faulty,
            "failures": failures,
        }


def run(args: argparse.Namespace) -> int:
    found = examine(args.file)
    if args.json:
        print(json.dumps(found.as_json(args.file)))
        return 1 if found.faulty else 0
    if found.faulty == found.trajectories and not any(checked.job for checked in found.first):
        first = found.first[0]
        print(
            clean(
                f"{args.file}: this is no exported file. {first.where}: {'; '.join(first.faults)}"
            )
        )
        return 1
    for checked in found.first:
        job = f" (job {checked.job})" if checked.job else ""
        print(clean(f"{args.file}: {checked.where}{job}: {'; '.join(checked.faults)}"))
    if more := found.faulty - len(found.first):
        print(f"and {more} more")
    print(f"{args.file}: {found.trajectories} trajectories, {found.faulty} faulty")
    return 1 if found.faulty else 0


def examine(file: Path) -> Findings:
    """Checks the whole file. Raises SettingsError when it cannot be read, ContractError when it
    holds nothing.
    """
    found, known = Findings(), WrittenJobs()
    try:
        with open_progress(sys.stderr) as progress:
            for checked in jsonl.check(file):
                found.add(_once(checked, known))
                facts = {
                    "percent of": str(file),
                    "trajectories": str(found.trajectories),
                    "faulty": str(found.faulty),
                }
                progress.show(int(100 * checked.share), 100, facts)
    finally:
        known.close()
    if not found.trajectories:
        raise ContractError(f"{file} holds no trajectory")
    return found


def _once(checked: Checked, known: WrittenJobs) -> Checked:
    """Adds a fault when an earlier trajectory of the file has the same job."""
    if not checked.job:
        return checked
    if known.get(checked.job):
        return checked._replace(faults=[*checked.faults, "the job is in the file already"])
    known.add([(checked.job, 0, 0.0)])
    return checked
