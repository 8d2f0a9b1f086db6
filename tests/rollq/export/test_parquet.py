"""A folder of Parquet files: whole files, no job twice, durable before it is acknowledged."""

import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from rollq.errors import ContractError, SettingsError
from rollq.events import Observed
from rollq.export.parquet import COLUMNS, UNFINISHED, ParquetFolder, check
from rollq.export.record import Unexportable
from rollq.export.rows import rows
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import Extra
from tests.rollq.export.exported_files import jobs, lines
from tests.rollq.export.trajectories import played, sound
from tests.rollq.samples import job, trajectory
from tests.rollq.token_rows import Trace, episode, episodes


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "x.parquet"


def save(path: Path, *trajectories: Any) -> int:
    """Returns how many were there already."""
    with ParquetFolder(path, append=True) as folder:
        folder.save(trajectories)
        return folder.repeated


def test_a_row_has_what_a_trainer_trains_on(out: Path) -> None:
    made = trajectory(0.5, of=job(labels={"uid": 7}))
    save(out, made)
    [row] = lines(out)
    [segment] = made.segments()
    assert list(row) == list(COLUMNS)
    assert row["prompt_ids"] == segment.prompt_ids.tolist()
    assert row["response_ids"] == segment.response_ids.tolist()
    assert row["mask"] == [True, True, False, False, True, True, False, False]
    assert row["logprobs"] == segment.logprobs.tolist() and row["versions"] == segment.versions
    assert (row["job"], row["group"], row["sample"], row["reward"], row["stop"]) == (
        "r/g/0",
        "g",
        0,
        0.5,
        "done",
    )
    assert row["labels"] == '{"uid":7}' and '"content":"Hello"' in row["messages"]


@given(episodes)
def test_rows_are_the_segments(shape: list[Trace]) -> None:
    made = episode(shape, itertools.count())
    found, segments = rows(made, 7), made.segments()
    assert [(row["segment"], row["segments"]) for row in found] == [
        (i, len(found)) for i in range(len(found))
    ]
    if not segments:
        assert [(row["prompt_ids"], row["response_ids"]) for row in found] == [
            (made.tokens.tolist(), [])
        ]
        return
    assert [row["prompt_ids"] for row in found] == [
        segment.prompt_ids.tolist() for segment in segments
    ]
    assert [row["response_ids"] for row in found] == [
        segment.response_ids.tolist() for segment in segments
    ]
    assert [bytes(row["mask"]) for row in found] == [segment.mask for segment in segments]


@pytest.mark.parametrize("left", [0, 10, -1])
def test_a_file_that_a_crash_left_unfinished_is_deleted_and_written_again(
    out: Path, left: int
) -> None:
    save(out, played(0, 0, 1.0))
    whole = (out / "part-00000001.parquet").read_bytes()
    (out / UNFINISHED).write_bytes(whole[:left])
    assert jobs(out) == ["r/g0/0"]  # readers pass over it
    save(out, played(1, 0, 1.0))
    assert jobs(out) == ["r/g0/0", "r/g1/0"] and not (out / UNFINISHED).exists()


def test_without_append_the_folder_is_emptied_by_the_first_save(out: Path) -> None:
    save(out, played(0, 0, 1.0))
    with ParquetFolder(out, append=False) as folder:
        assert jobs(out) == ["r/g0/0"]
        folder.save([played(1, 0, 1.0)])
        folder.save([played(1, 1, 1.0)])
    assert jobs(out) == ["r/g1/0", "r/g1/1"]


def test_a_damaged_file_stops_the_opening_and_is_named(out: Path) -> None:
    save(out, played(0, 0, 1.0))
    part = out / "part-00000001.parquet"
    for damaged in (part.read_bytes()[:-20], b"PAR1 nothing PAR1"):
        part.write_bytes(damaged)
        with pytest.raises(
            ContractError, match=r"part-00000001\.parquet is not a file of exported trajectories: "
        ):
            ParquetFolder(out, append=True)
        assert part.read_bytes() == damaged


def test_other_files_and_folders_are_left_alone(out: Path) -> None:
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for append in (True, False):
        with pytest.raises(
            ContractError, match=r"holds notes\.txt, which `rollq pull` did not write"
        ):
            ParquetFolder(out, append=append)
    plain = out.with_name("y.parquet")
    plain.write_text("mine")
    with pytest.raises(
        SettingsError, match=r"y\.parquet is a file, and Parquet is written as a folder"
    ):
        ParquetFolder(plain, append=True)
    with pytest.raises(SettingsError, match=r"cannot write .*none/z\.parquet: No such file"):
        ParquetFolder(out.parent / "none" / "z.parquet", append=True)
    assert plain.read_text() == "mine"


def test_half_a_surrogate_pair(out: Path) -> None:
    """A message may have one. A column of text cannot hold it."""
    made = played(0, 0, 1.0)
    assert isinstance(made.events[2], Observed)
    made.events[2].message["content"] = "\ud800"
    save(out, made)
    assert '"content":"\\ud800"' in lines(out)[0]["messages"]
    object.__setattr__(played_again := played(0, 1, 1.0), "job", job(1, env="\ud800"))
    with pytest.raises(Unexportable, match="job r/g/1: cannot be exported: "):
        save(out, played_again)


def test_the_trainer_s_page_reads_the_rows(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed. The member with two traces counts once in its group's mean."""
    page = Path(__file__).resolve().parents[3] / "docs/trainer.md"
    [snippet] = [
        code
        for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
        if "x.parquet" in code
    ]
    two = sound([(3, [([2], 1)]), (6, [([1, 2], 1)])])
    save(out, two, trajectory(0.0, of=job(1)))
    trained: list[tuple[int, float]] = []
    monkeypatch.chdir(out.parent)
    exec(
        snippet,
        {
            "train_on": lambda prompt, response, *_: trained.append(
                (len(prompt) + len(response), _[-1])
            )
        },
    )
    assert trained == [(6, 0.5), (10, 0.5), (11, -0.5)]


def test_without_pyarrow_the_extra_is_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        SettingsError,
        match=r"this needs pyarrow, which is not installed: pip install .*\[parquet\]",
    ):
        ParquetFolder(out, append=True)
    assert not out.exists()


REWARDED = {"name": "look", "arguments": {}, "reward": 0.25}
EXPERTS = Extra(dtype="int32", shape=(2,), data=bytes(8))
PLAIN, TURNS = trajectory(), trajectory().events


@pytest.mark.parametrize(
    ("column", "made", "stored", "other"),
    [
        (
            "turn_rewards",
            replace(PLAIN, events=[*TURNS[:2], replace(TURNS[2], actions=[REWARDED]), *TURNS[3:]]),  # type: ignore[type-var]
            [0.25, None],
            [None, None],
        ),
        (
            "template_kwargs",
            replace(
                PLAIN, header=replace(PLAIN.header, template_kwargs={"enable_thinking": False})
            ),
            '{"enable_thinking":false}',
            None,
        ),
        ("adapter", trajectory(of=job(adapter="math")), "math", None),
        (
            "extras",
            replace(PLAIN, extras={"routed_experts": EXPERTS}),
            '{"routed_experts":{"dtype":"int32","shape":[2],"data":"AAAAAAAAAAA="}}',
            None,
        ),
    ],
)
def test_a_fact_that_only_some_have_is_a_column(
    out: Path, column: str, made: Trajectory, stored: object, other: object
) -> None:
    save(out, made, trajectory(of=job(sample=1)))
    assert [row[column] for row in lines(out)] == [stored, other]
    assert [checked.faults for checked in check(out)] == [[], []]
