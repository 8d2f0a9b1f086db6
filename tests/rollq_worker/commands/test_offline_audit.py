"""`rollq audit --offline`: names the faults of an exported file, and counts the rest."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.export.output import TrajectoryFile
from rollq_worker.commands.offline_audit import MOST_SHOWN, examine
from tests.rollq.export.trajectories import played


def exported(path: Path, groups: int = 2) -> Path:
    with TrajectoryFile(path, append=True) as out:
        for group in range(groups):
            out.save([played(group, sample, 1.0) for sample in range(2)])
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return exported(tmp_path / "x.jsonl")


def damage(file: Path, job: str, **changes: Any) -> None:
    """Changes fields of one job's line."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        if record["job"] == job:
            record |= changes
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_sound_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", str(file), "--offline"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{file}: 4 trajectories, 0 faulty\n"
    assert said.err.splitlines()[-1] == f"100/100  percent of {file}  trajectories 4  faulty 0"


def test_faults_are_named_with_their_place_and_job(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(file, "r/g1/0", reward=None)
    where = "line 3"
    why = "stop done with reward None: exactly done, length, malformed, turns carry a reward"
    assert cli.main(["audit", str(file), "--offline"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: {where} (job r/g1/0): {why}",
        f"{file}: 4 trajectories, 1 faulty",
    ]
    assert cli.main(["audit", str(file), "--offline", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "file": str(file),
        "trajectories": 4,
        "faulty": 1,
        "failures": [{"where": where, "job": "r/g1/0", "faults": [why]}],
    }


def test_a_job_that_is_there_twice(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text() * 2)
    assert cli.main(["audit", str(file), "--offline"]) == 1
    said = capsys.readouterr().out
    assert "(job r/g0/1): the job is in the file already" in said
    assert "8 trajectories, 4 faulty" in said


def test_only_the_first_faults_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(tmp_path / "x.jsonl", groups=1)
    file.write_text("no JSON\n" * (MOST_SHOWN + 5) + file.read_text())
    assert cli.main(["audit", str(file), "--offline"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert (len(said), said[-2]) == (MOST_SHOWN + 2, "and 5 more")
    assert said[0].startswith(f"{file}: line 1: it is not a line of JSON: ")


def test_a_file_of_something_else_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"question": "1 + 1", "answer": "2"}\n' * 30)
    assert cli.main(["audit", str(file), "--offline"]) == 1
    [said] = capsys.readouterr().out.splitlines()
    assert said.startswith(
        f"{file}: this is not an exported file. line 1: it is not an exported trajectory: it has "
        "no job, "
    )


def test_a_torn_line_and_lines_that_are_no_trajectories(tmp_path: Path) -> None:
    file = exported(tmp_path / "x.jsonl", groups=1)
    whole = file.read_bytes()
    file.write_bytes(b"[]\n" + b"[" * 100_000 + b"\n" + b'{"a": 1}\n' + whole[:-20])
    first = {checked.where: checked.faults[0] for checked in examine(file).first}
    assert first["line 1"] == "it is not a trajectory but a list"
    assert first["line 2"].startswith("it is not a line of JSON: ")
    assert first["line 3"].startswith("it is not an exported trajectory: it has no job, ")
    assert first["line 5"].startswith(
        "it is not a line of JSON (torn by a crash: the next pull cuts it off): "
    )


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    file = exported(tmp_path / "x.jsonl", groups=1)
    line = file.read_bytes().splitlines(keepends=True)[0]
    groups = 5_000
    file.write_bytes(
        b"".join(
            line.replace(b"r/g0/0", b"r/g%d/0" % n).replace(b'"g0"', b'"g%d"' % n)
            for n in range(groups)
        )
    )

    def most() -> int:
        tracemalloc.start()
        try:
            found = examine(file)
            assert (found.trajectories, found.faulty) == (groups, 0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # An id alone takes more, and a line 500. Threads that other tests left may take memory in one
    # of the tries.
    assert any(most() < 40 * groups for _ in range(3))


def test_files_that_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", str(tmp_path / "none.jsonl"), "--offline"]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert cli.main(["audit", "x.jsonl", "--offline", "--engine", "http://h:1"]) == 2
    assert "--offline asks no engine" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").touch()
    assert cli.main(["audit", str(tmp_path / "empty.jsonl"), "--offline"]) == 1


def test_a_job_that_is_no_text_costs_no_other(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace('"r/g0/1"', '"r/\\ud800/0"'))
    assert cli.main(["audit", str(file), "--offline"]) == 1
    assert "4 trajectories, 1 faulty" in capsys.readouterr().out
