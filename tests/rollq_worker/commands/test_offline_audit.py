"""`rollq audit --offline`: names what is wrong with an exported file, in either format, and counts
the rest.
"""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rollq import cli
from rollq.export.formats import open_output
from rollq_worker.commands.offline_audit import MOST_SHOWN, examine
from tests.rollq.export.trajectories import played, sound


def exported(path: Path, groups: int = 2) -> Path:
    with open_output(path, append=True) as out:
        for group in range(groups):
            out.save([played(group, sample, 1.0) for sample in range(2)])
    return path


@pytest.fixture(params=["x.jsonl", "x.parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return exported(tmp_path / request.param)


def damage(file: Path, job: str, **changes: Any) -> None:
    """Changes fields of one job's rows."""
    if file.is_file():
        found = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text(
            "".join(
                json.dumps(row | (changes if row["job"] == job else {})) + "\n" for row in found
            )
        )
        return
    for part in file.iterdir():
        table = pq.read_table(part)
        rows = [row | (changes if row["job"] == job else {}) for row in table.to_pylist()]
        pq.write_table(type(table).from_pylist(rows, schema=table.schema), part)


def test_a_sound_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", str(file), "--offline"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{file}: 4 trajectories, 0 faulty\n"
    assert said.err.splitlines()[-1] == f"100/100  percent of {file}  trajectories 4  faulty 0"


def test_faults_are_named_with_their_place_and_job(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(file, "r/g1/0", reward=None)
    where = "line 3" if file.is_file() else "part-00000002.parquet row 1"
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
    if file.is_file():
        file.write_text(file.read_text() * 2)
    else:
        (file / "part-00000003.parquet").write_bytes((file / "part-00000001.parquet").read_bytes())
    assert cli.main(["audit", str(file), "--offline"]) == 1
    said = capsys.readouterr().out
    assert "(job r/g0/1): the job is in the file already" in said
    assert f"{8 if file.is_file() else 6} trajectories, {4 if file.is_file() else 2} faulty" in said


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
        f"{file}: this is no exported file. line 1: it is no exported trajectory: it has no job, "
    )


def test_a_torn_line_and_lines_that_are_no_trajectories(tmp_path: Path) -> None:
    file = exported(tmp_path / "x.jsonl", groups=1)
    whole = file.read_bytes()
    file.write_bytes(b"[]\n" + b"[" * 100_000 + b"\n" + b'{"a": 1}\n' + whole[:-20])
    first = {checked.where: checked.faults[0] for checked in examine(file).first}
    assert first["line 1"] == "it is no trajectory but a list"
    assert first["line 2"].startswith("it is not a line of JSON: ")
    assert first["line 3"].startswith("it is no exported trajectory: it has no job, ")
    assert first["line 5"].startswith(
        "it is not a line of JSON (torn by a crash: the next pull cuts it off): "
    )


def test_parts_that_cannot_be_read_do_not_hide_the_others(tmp_path: Path) -> None:
    file = exported(tmp_path / "x.parquet", groups=4)
    cut, flipped, other = (file / f"part-0000000{n}.parquet" for n in (1, 2, 3))
    cut.write_bytes(cut.read_bytes()[:-9])
    job = pq.read_metadata(flipped).row_group(0).column(0)
    data = bytearray(flipped.read_bytes())
    data[job.dictionary_page_offset + job.total_compressed_size - 2] ^= (
        0xFF  # inside a page, which has a checksum
    )
    flipped.write_bytes(data)
    table = pq.read_table(other)
    pq.write_table(table.drop_columns(["mask"]).set_column(0, "job", [[1, 2]]), other)
    found = examine(file)
    faults = {checked.where.split()[0]: checked.faults for checked in found.first}
    assert faults[cut.name][0].startswith("it cannot be read: ")
    assert flipped.name in faults
    assert faults[other.name] == ["it has no column mask", "column job must be string, not int64"]
    assert not any(checked.where.startswith("part-00000004") for checked in found.first)


def test_parts_made_one_file_are_sound(tmp_path: Path) -> None:
    """As a reader makes one of many small ones, in one row group."""
    file = tmp_path / "x.parquet"
    with open_output(file, append=True) as out:
        for sample in range(40):
            out.save([sound([(3, [([2], 1)])] * 3, sample)])
    pq.write_table(pq.read_table(file), tmp_path / "one.parquet")
    found = examine(tmp_path / "one.parquet")
    assert (found.trajectories, found.faulty) == (40, 0)


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
    (tmp_path / "empty.parquet").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    said = [
        cli.main(["audit", str(tmp_path / name), "--offline"])
        for name in ("empty.jsonl", "empty.parquet", "other")
    ]
    assert said == [1, 1, 1]
