"""An exported file as a place: it grows, and what cannot be read is shown as such."""

import json
from pathlib import Path

import pytest

from rollq.errors import ContractError, SettingsError
from rollq.export.record import record
from rollq.trajectory import Trajectory
from rollq_view.exported import UNREADABLE, ExportedFile
from tests.rollq.samples import job, trajectory
from tests.rollq_view.hostile import export, said_everywhere, write


def played(sample: int, reward: float = 1.0) -> Trajectory:
    return trajectory(reward, of=job(sample))


def test_a_file_that_grows_gets_more_rows(tmp_path: Path) -> None:
    path = export(tmp_path / "x.jsonl", played(0))
    place = ExportedFile(path)
    before = place.listing("r")
    with path.open("a") as file:
        file.write(json.dumps(record(played(1, 0.0))) + "\n" + '{"job":"torn')
    after = place.listing("r")
    assert [list(before.rows), list(after.rows)] == [["r/g/0"], ["r/g/0", "r/g/1"]]
    assert (before.version, after.version, after.share) == (1, 2, 1.0)
    assert after.rows["r/g/1"].reward == 0.0


def test_a_line_whose_newline_comes_later_is_one_line(tmp_path: Path) -> None:
    path = export(tmp_path / "x.jsonl", played(0))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    place = ExportedFile(path)
    with path.open("a") as file:
        file.write("\n" + json.dumps(record(played(1))) + "\n")
    assert list(place.listing("r").rows) == ["r/g/0", "r/g/1"]
    assert [run["run"] for run in place.runs()] == ["r"]
    assert place.rollout("r", "r/g/1", None)["job"] == "r/g/1"


@pytest.mark.parametrize("now", [1, 3])
def test_a_file_that_is_overwritten_is_read_again(tmp_path: Path, now: int) -> None:
    """As by `rollq demo --out`: no rollout is shown in another one's place."""
    path = export(tmp_path / "x.jsonl", played(0), played(0))
    place = ExportedFile(path)
    version = place.listing("r").version
    export(path, *[played(1)] * now)
    with pytest.raises(SettingsError, match="no rollout 'r/g/0'"):
        place.rollout("r", "r/g/0", None)
    after = place.listing("r")
    assert list(after.rows) == ["r/g/1", "r/g/1#2", "r/g/1#3"][:now]
    assert after.version > version and place.rollout("r", "r/g/1", None)["sample"] == 1


def test_names_that_no_address_can_carry_cost_no_other(tmp_path: Path) -> None:
    odd = [{"run": "\ud800"}, {"group": "\ud800"}, {"job": "r/g/\udfff"}]
    records = [record(played(1)) | one for one in [*odd, {"run": ""}, {"group": ""}, {"job": ""}]]
    place = ExportedFile(write(tmp_path / "x.jsonl", record(played(0)), *records))
    for run in place.runs():
        for key, row in place.listing(run["run"]).rows.items():
            page = place.rollout(row.run, key, None)
            for name in (row.run, key, row.group, page["group"]):
                assert name and name.encode()
    assert list(place.listing("r").rows) == ["r/g/0", "r/g/1#2", "r/g/\\udfff"]
    assert list(place.listing(UNREADABLE).rows) == ["line 5", "line 6", "line 7"]


def test_the_mean_of_huge_rewards_is_a_number(tmp_path: Path) -> None:
    place = ExportedFile(export(tmp_path / "x.jsonl", played(0, 1e308), played(1, 1e308)))
    assert place.runs()[0]["reward_mean"] == 1e308


def test_a_large_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollq_view.exported.READS_FOR_S", -1)
    place = ExportedFile(
        export(tmp_path / "x.jsonl", *(played(n) for n in range(2)), said_everywhere(sample=1))
    )
    seen = [place.listing("r") for _ in range(4)]
    assert [len(listing.rows) for listing in seen] == [2, 3, 3, 3]
    assert [listing.share == 1.0 for listing in seen] == [False, False, True, True]


def test_the_second_line_of_a_job_has_a_key_of_its_own(tmp_path: Path) -> None:
    place = ExportedFile(export(tmp_path / "x.jsonl", played(0), played(0, 0.0)))
    assert [row.reward for row in place.listing("r").rows.values()] == [1.0, 0.0]
    assert place.rollout("r", "r/g/0#2", None)["reward"] == 0.0


def test_lines_that_cannot_be_read_are_shown_and_cost_no_other(tmp_path: Path) -> None:
    path = export(tmp_path / "x.jsonl", played(0))
    with path.open("ab") as file:
        file.write(
            b"not json\n"
            + b'{"job":"r/g/1","run":7}\n'
            + b"\xff\n"
            + json.dumps(record(played(1)) | {"task": float("inf")}).encode()
            + b"\n"
            + (json.dumps(record(played(1)))[:-1] + f', "reward": 1{"0" * 400}}}').encode()
            + b"\n"
            + json.dumps(record(played(1))).encode()
            + b"\n"
        )
    place = ExportedFile(path)
    assert {found["run"]: found["rollouts"] for found in place.runs()} == {"r": 2, UNREADABLE: 5}
    wrong = place.listing(UNREADABLE).rows
    assert list(wrong) == [f"line {number}" for number in range(2, 7)]
    assert "not a line of JSON" in wrong["line 2"].why
    with pytest.raises(ContractError, match="line of JSON"):
        place.rollout(UNREADABLE, "line 2", None)


def test_a_record_that_breaks_the_format_is_shown_with_its_faults(tmp_path: Path) -> None:
    broken = record(played(0)) | {"reward": float("nan")}
    place = ExportedFile(write(tmp_path / "x.jsonl", broken))
    page = place.rollout("r", "r/g/0", None)
    assert any("reward" in fault for fault in page["faults"])


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        ExportedFile(tmp_path / "none.jsonl")
    place = ExportedFile(export(tmp_path / "x.jsonl", played(0)))
    with pytest.raises(SettingsError, match="no rollouts of run"):
        place.listing("other")
    with pytest.raises(SettingsError, match="no rollout"):
        place.rollout("r", "r/g/9", None)
    with pytest.raises(SettingsError, match="view its run"):
        place.requeue("r", "r/g/0")
