"""`rollq show`: one trajectory of a run or of a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollq.export.record import encode
from tests.rollq.commands.conftest import Fails, Says
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.export.trajectories import played


def test_a_job_that_is_unknown_and_one_that_is_queued(says: Says) -> None:
    assert "no run 'r'" in says("show", "r/g/0", code=2).err
    says(*SUBMIT)
    assert "job r/g/0 is unknown" in says("show", "r/g/0", code=1).err
    assert "queued" in says("show", "r/shop.train.0/0").out


def test_a_run_or_a_group_is_no_job_and_is_shown_by_view(fails: Fails) -> None:
    said = fails("show", "try")
    assert "`rollq view --run try` shows a run" in said and "`rollq show try/GROUP/SAMPLE`" in said
    said = fails("show", "try/g")
    assert "`rollq view --run try` shows that group" in said and "`rollq show try/g/0`" in said
    said = fails("show", "no such/place")
    assert "is neither a file nor a job" in said and "view" not in said


def test_without_the_viewers_package_html_names_what_to_install(
    tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollq.commands.show.entry_points", lambda group: ())
    assert "[view]" in fails("show", "r/g/0", "--html", str(tmp_path / "x.html"))


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": ["x"]}]},
        {"logprobs": [10**400] * 6},
    ],
)
def test_a_line_that_is_no_trajectory(tmp_path: Path, changes: dict[str, Any], says: Says) -> None:
    file = tmp_path / "x.jsonl"
    record = json.loads(encode(played(0, 0, 1.0)))
    file.write_text(json.dumps(record | changes) + "\n")
    assert "is not an exported trajectory" in says("show", f"{file}:1", code=1).err
