"""`rollq show`: one trajectory of a run or of a file."""

from pathlib import Path

import pytest

from rollq import cli
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT


def test_an_unknown_job_is_an_error(redis_url: str, fails: Fails) -> None:
    assert "no run 'r'" in fails("show", "r/g/0", "--redis", redis_url)
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    assert "job r/g/0 is unknown" in fails("show", "r/g/0", "--redis", redis_url, code=1)


def test_a_run_or_a_group_is_no_job_and_is_shown_by_view(fails: Fails) -> None:
    said = fails("show", "try")
    assert "`rollq view --run try` shows a run" in said and "`rollq show try/GROUP/SAMPLE`" in said
    said = fails("show", "try/g")
    assert "`rollq view --run try` shows that group" in said and "`rollq show try/g/0`" in said
    assert "view" not in fails("show", "no such/place")


def test_a_queued_job_has_a_state_and_no_turns(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    capsys.readouterr()
    assert cli.main(["show", "r/shop.train.0/0", "--redis", redis_url]) == 0
    assert "queued" in capsys.readouterr().out


def test_without_the_viewers_package_html_names_what_to_install(
    tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollq.commands.show.entry_points", lambda group: ())
    assert "[view]" in fails("show", "r/g/0", "--html", str(tmp_path / "x.html"))
