"""A field of the exported form is written once: the record, the check and the page agree."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rollq.export.facts import FACTS, JOB_FIELDS, OPTIONAL_JOB_FIELDS
from rollq.export.record import record
from rollq.export.validation import faults
from rollq.job import Job
from rollq.teachers import logprobs_of
from rollq.trajectory_extras import Extra
from tests.rollq.samples import job, trajectory

DOCS = Path(__file__).resolve().parents[3] / "docs"


def table_below(page: str, heading: str) -> set[str]:
    """The names in the first column of the table below this heading."""
    section = (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_page_lists_each_exported_field() -> None:
    assert table_below("commands.md", "The exported form") == {*FACTS}


def test_the_page_lists_each_field_of_a_job() -> None:
    assert table_below("wire.md", "Job") == {field.name for field in fields(Job)}


@pytest.mark.parametrize("name", [*JOB_FIELDS, *OPTIONAL_JOB_FIELDS])
def test_a_job_s_field_is_exported_and_checked(name: str) -> None:
    values: dict[str, Any] = {
        "labels": {"uid": 7},
        "sampling": {"top_k": 5},
        "adapter": "math",
        "queue": "large",
    }
    values |= {"teachers": {"math": {"model": "large"}}, "models": {"red": {"adapter": "red"}}}
    of = job(**values)
    played = trajectory(of=of)
    sampled = played.sampled_tokens
    scores = Extra(dtype="float32", shape=(sampled,), data=bytes(4 * sampled))
    line = record(replace(played, extras={logprobs_of("math"): scores}))
    assert line[name] == getattr(of, name) and faults(line) == []
    wrong = [True, None, 1.5]
    assert all(faults(line | {name: value})[0].startswith(f"{name} must be ") for value in wrong)
