"""The exported file: whole lines, no job twice, durable before it is acknowledged."""

import json
from pathlib import Path

import pytest

from rollq import jsonl
from rollq.errors import ContractError, SettingsError
from rollq.jsonl import TrajectoryFile
from tests.rollq.test_summary import played


def jobs(path: Path) -> list[str]:
    return [json.loads(line)["job"] for line in path.read_text().splitlines()]


def test_lines_are_there_after_sync(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with TrajectoryFile(path, append=True) as out:
        out.write(played(0, 0, 1.0))
        out.write(played(0, 1, 0.0))
        out.sync()
        assert jobs(path) == ["r/g0/0", "r/g0/1"]


def test_a_job_is_written_once_however_often_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for _ in range(2):
        with TrajectoryFile(path, append=True) as out:
            for sample in (0, 1, 0):
                out.write(played(0, sample, 1.0))
    with TrajectoryFile(path, append=True) as out:
        out.write(played(1, 0, 1.0))
    assert jobs(path) == ["r/g0/0", "r/g0/1", "r/g1/0"]


def test_a_torn_line_is_cut_off_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with TrajectoryFile(path, append=True) as out:
        out.write(played(0, 0, 1.0))
        out.write(played(0, 1, 1.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with TrajectoryFile(path, append=True) as out:
        out.write(played(0, 1, 1.0))
    assert path.read_bytes() == whole


def test_overwriting_forgets_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("something else\n")
    with TrajectoryFile(path, append=False) as out:
        out.write(played(0, 0, 1.0))
    assert jobs(path) == ["r/g0/0"]


@pytest.mark.parametrize("line", ["something else", "[]", '{"a": 1}', '{"job": 1}'])
def test_another_kind_of_file_is_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(f"{line}\n")
    with pytest.raises(ContractError, match=r"notes\.txt:1 is not"):
        TrajectoryFile(path, append=True)
    with pytest.raises(ContractError, match=r"notes\.txt:1 is not"):
        jsonl.read(path, 1)
    assert path.read_text() == f"{line}\n"


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot write"):
        TrajectoryFile(tmp_path / "no" / "folder.jsonl", append=True)
    with pytest.raises(SettingsError, match="cannot write"):
        TrajectoryFile(tmp_path, append=True)
    with pytest.raises(SettingsError, match="cannot read"):
        jsonl.read(tmp_path / "none.jsonl", 1)
    (tmp_path / "one.jsonl").write_text('{"job": "r/g/0"}\n')
    with pytest.raises(SettingsError, match="has no line 2"):
        jsonl.read(tmp_path / "one.jsonl", 2)


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    trajectory = played(0, 0, 1.0)
    trajectory.events[2].message["content"] = "\ud800"  # type: ignore[union-attr]
    with TrajectoryFile(tmp_path / "out.jsonl", append=False) as out:
        out.write(trajectory)
    assert jsonl.read(tmp_path / "out.jsonl", 1)["messages"] == [{"role": "assistant", "content": "\ud800"}]


def test_what_json_cannot_say_names_the_job(tmp_path: Path) -> None:
    trajectory = played(0, 0, 1.0)
    trajectory.events[2].message["content"] = float("nan")  # type: ignore[union-attr]
    with TrajectoryFile(tmp_path / "out.jsonl", append=False) as out, pytest.raises(ContractError, match="r/g0/0"):
        out.write(trajectory)


def test_a_pipe_will_do() -> None:
    with TrajectoryFile(Path("/dev/null"), append=True) as out:
        out.write(played(0, 0, 1.0))
        out.sync()
