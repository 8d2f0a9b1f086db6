"""The exported file: whole lines, no job twice, durable before it is acknowledged."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from rollq.errors import ContractError, SettingsError
from rollq.export import jsonl
from rollq.export.output import TrajectoryFile
from tests.rollq.export.exported_files import jobs
from tests.rollq.export.trajectories import played


def test_the_jobs_of_a_long_file_are_known_without_being_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with TrajectoryFile(path, append=True) as out:
        out.save([played(0, 0, 1.0)])
    line = path.read_bytes()
    lines = 20_000
    path.write_bytes(b"".join(line.replace(b"r/g0/0", b"r/g%d/0" % n) for n in range(lines)))
    tracemalloc.start()
    try:
        with TrajectoryFile(path, append=True) as out:
            kept, _ = tracemalloc.get_traced_memory()
            out.save([played(0, 0, 1.0)])
    finally:
        tracemalloc.stop()
    assert kept < 20 * lines  # an id alone takes more
    assert out.repeated == 1


def test_a_job_that_redis_made_come_again_keeps_its_first_episode(tmp_path: Path, caplog) -> None:
    """Its acknowledgement was lost with Redis's last writes, and its last turn was played again."""
    path, first, again = tmp_path / "out.jsonl", played(0, 0, 1.0), played(0, 0, 0.0)
    with TrajectoryFile(path, append=True) as out:
        out.save([replace(first, header=replace(first.header, at=1000.0))])
    before = path.read_bytes()
    with TrajectoryFile(path, append=True) as out:
        out.run_began = lambda: 999.0
        out.save([again])
        assert (path.read_bytes(), out.repeated) == (before, 1)
        assert "job r/g0/0 came again with another episode" in caplog.text
        out.run_began = lambda: 1001.0  # the line is older than the run
        with pytest.raises(SettingsError, match="before this run began"):
            out.save([again])


@pytest.mark.parametrize("left", [2, 20, 150, -3])
def test_a_torn_line_is_cut_off_and_written_again(tmp_path: Path, left: int) -> None:
    path = tmp_path / "out.jsonl"
    with TrajectoryFile(path, append=True) as out:
        out.save([played(0, 0, 1.0), played(0, 1, 1.0)])
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    path.write_bytes(whole[:-left] if left > 0 else whole[: start - left])
    with TrajectoryFile(path, append=True) as out:
        assert jobs(path) == ["r/g0/0"]
        out.save([played(0, 1, 1.0)])
    assert path.read_bytes() == whole


def test_a_last_line_without_its_newline_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with TrajectoryFile(path, append=True) as out:
        out.save([played(0, 0, 1.0)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with TrajectoryFile(path, append=True) as out:
        out.save([played(0, 0, 1.0)])
    assert path.read_bytes() == whole


def test_without_append_the_file_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("something else\n")
    with TrajectoryFile(path, append=False) as out:
        out.save([played(0, 0, 1.0)])
    assert jobs(path) == ["r/g0/0"]


@pytest.mark.parametrize(
    "line",
    ["something else", "[]", '{"a": 1}', "[" * 100_000, '{"job": 1}'],
)
def test_another_kind_of_file_is_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "notes.txt"
    for text in (f"{line}\n", line):
        path.write_text(text)
        with pytest.raises(ContractError, match=r"notes\.txt:1 is not"):
            TrajectoryFile(path, append=True)
        with pytest.raises(ContractError, match=r"notes\.txt:1 is not"):
            jsonl.read(path, 1)
        assert path.read_text() == text


def test_a_file_or_line_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        jsonl.read(tmp_path / "none.jsonl", 1)
    (tmp_path / "one.jsonl").write_text('{"job": "r/g/0"}\n')
    with pytest.raises(SettingsError, match="has no line 2"):
        jsonl.read(tmp_path / "one.jsonl", 2)


def test_a_device_or_pipe_is_written_too() -> None:
    with TrajectoryFile(Path("/dev/null"), append=True) as out:
        out.save([played(0, 0, 1.0)])
