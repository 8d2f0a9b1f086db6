"""Promises of an exported file: no job twice, one writer, and after a fault the next process goes
on.
"""

import math
import os
import pickle
import re
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import ContractError, RollqError, SettingsError
from rollq.events import Stop
from rollq.export.output import TrajectoryFile, WrittenJobs
from rollq.export.record import Unexportable
from tests.rollq.export.exported_files import jobs, lines
from tests.rollq.export.trajectories import played, sound
from tests.rollq.samples import job, trajectory


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def save(path: Path, *trajectories: Any) -> int:
    """Returns how many were there already."""
    with TrajectoryFile(path, append=True) as output:
        output.save(trajectories)
        return output.repeated


def test_a_job_is_written_once_however_often_it_comes(out: Path) -> None:
    assert save(out, played(0, 0, 1.0), played(0, 1, None, Stop.FAILED)) == 0
    assert save(out, played(0, 1, None, Stop.FAILED), played(0, 0, 1.0), played(1, 0, 1.0)) == 2
    with TrajectoryFile(out, append=True) as output:
        for _ in range(2):
            output.save([played(1, 0, 1.0), played(2, 0, 1.0)])
            assert "r/g2/0" in jobs(out)  # before it is acknowledged
        assert output.repeated == 3
    assert jobs(out) == ["r/g0/0", "r/g0/1", "r/g1/0", "r/g2/0"]
    assert [(line["reward"], line["stop"]) for line in lines(out)][:2] == [
        (1.0, "done"),
        (None, "failed"),
    ]


def test_what_is_saved_is_on_disk(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = set[tuple[int, int]](), os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced.add((os.fstat(fd).st_ino, os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fsync", noted)
    with TrajectoryFile(out, append=True) as output:
        for task in range(2):
            output.save([played(task, 0, 1.0)])
            assert (out.stat().st_ino, out.stat().st_size) in synced


def test_one_process_at_a_time_writes(out: Path) -> None:
    with TrajectoryFile(out, append=True) as output:
        output.save([played(0, 0, 1.0)])
        for append in (True, False):
            with pytest.raises(
                SettingsError, match=rf"{out.name} is being written by another process"
            ):
                TrajectoryFile(out, append=append)
        assert jobs(out) == ["r/g0/0"]
    assert save(out, played(1, 0, 1.0)) == 0


def test_after_a_full_disk_the_next_process_continues(out: Path) -> None:
    save(out, played(0, 0, 1.0))
    size = out.stat().st_size * 3 // 2
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(
            RollqError, match=rf"cannot write .*{out.name}.*: .*the rest will be handed out again"
        ):
            save(out, played(0, 1, 1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.stat().st_size == size
    assert save(out, played(0, 0, 1.0), played(0, 1, 1.0)) == 1
    assert jobs(out) == ["r/g0/0", "r/g0/1"]


@pytest.mark.parametrize("content", [math.nan, math.inf])
def test_a_batch_that_cannot_be_exported_is_not_written(out: Path, content: object) -> None:
    wrong = played(0, 1, 1.0)
    wrong.events[2].message["content"] = content  # type: ignore[union-attr]
    with TrajectoryFile(out, append=True) as output:
        with pytest.raises(Unexportable, match="job r/g0/1: cannot be exported: ") as caught:
            output.save([played(0, 0, 1.0), wrong])
        assert pickle.loads(pickle.dumps(caught.value)).job_id == "r/g0/1"
        assert not lines(out)
        output.save([played(0, 0, 1.0)])
    assert jobs(out) == ["r/g0/0"]


def test_the_trainer_s_page_reads_the_lines(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed. The member with two traces counts once in its group's mean."""
    page = Path(__file__).resolve().parents[3] / "docs/trainer.md"
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    [snippet] = [code for code in snippets if "x.jsonl" in code]
    two_traces = sound([(3, [([2], 1)]), (6, [([1, 2], 1)])])
    save(out.with_name("x.jsonl"), two_traces, trajectory(0.0, of=job(1)))
    rows: list[tuple[int, float]] = []
    monkeypatch.chdir(out.parent)
    exec(
        snippet,
        {"train_on": lambda tokens, *_: rows.append((len(tokens), _[-1]))},
    )
    assert rows == [(6, 0.5), (10, 0.5), (11, -0.5)]


def test_a_line_whose_job_is_no_text_is_named(out: Path) -> None:
    out.write_text('{"job":"\\ud800","began":1.0}\n')
    with pytest.raises(ContractError, match=r"out\.jsonl:1"):
        save(out, played(0, 0, 1.0))


def test_a_full_temporary_folder_is_said_in_one_line(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with TrajectoryFile(out, append=True) as output:
        monkeypatch.setattr(WrittenJobs, "add", full)
        with pytest.raises(RollqError, match=r"disk is full.*TMPDIR.*is in the file"):
            output.save([played(0, 0, 1.0)])
    assert jobs(out) == ["r/g0/0"]
