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
    findings = examine(args.file)
    code = 1 if findings.faulty else 0
    if args.json:
        print(json.dumps(findings.as_json(args.file)))
        return code
    has_job = any(checked.job for checked in findings.first)
    if findings.faulty == findings.trajectories and not has_job:
        first = findings.first[0]
        text = f"this is not an exported file. {first.where}: {'; '.join(first.faults)}"
        print(clean(f"{args.file}: {text}"))
        return code
    for checked in findings.first:
        job = f" (job {checked.job})" if checked.job else ""
        print(clean(f"{args.file}: {checked.where}{job}: {'; '.join(checked.faults)}"))
    more = findings.faulty - len(findings.first)
    if more:
        print(f"and {more} more")
    print(f"{args.file}: {findings.trajectories} trajectories, {findings.faulty} faulty")
    return code


def examine(file: Path) -> Findings:
    """Checks all lines of the file. Raises SettingsError when it cannot be read, ContractError when
    it holds nothing.
    """
    findings = Findings()
    jobs = WrittenJobs()
    try:
        with open_progress(sys.stderr) as progress:
            for checked in jsonl.check(file):
                findings.add(_with_repetition(checked, jobs))
                facts = {
                    "percent of": str(file),
                    "trajectories": str(findings.trajectories),
                    "faulty": str(findings.faulty),
                }
                progress.show(int(100 * checked.share), 100, facts)
    finally:
        jobs.close()
    if not findings.trajectories:
        raise ContractError(f"{file} holds no trajectory")
    return findings


def _with_repetition(checked: Checked, jobs: WrittenJobs) -> Checked:
    """Adds a fault when an earlier trajectory of the file has the same job."""
    if not checked.job:
        return checked
    try:
        is_repeated = jobs.get(checked.job) is not None
    except UnicodeEncodeError:  # half a surrogate pair, which is a fault already
        return checked
    if is_repeated:
        return checked._replace(faults=[*checked.faults, "the job is in the file already"])
    jobs.add([(checked.job, 0, 0.0)])
    return checked
