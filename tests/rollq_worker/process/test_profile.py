"""The profile of a worker: whose CPU time it counts, and the file that it leaves."""

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import SettingsError
from rollq_worker.process.profile import CpuSampler, profiling


def work_hard(until: threading.Event) -> None:
    while not until.is_set():
        sum(range(1000))


def wait_idly(until: threading.Event) -> None:
    until.wait()


@pytest.fixture
def threads() -> Any:
    over = threading.Event()
    started = [threading.Thread(target=target, args=(over,)) for target in (work_hard, wait_idly)]
    for thread in started:
        thread.start()
    yield
    over.set()
    for thread in started:
        thread.join()


def names(profile: dict[str, Any]) -> set[str]:
    return {frame["name"] for frame in profile["shared"]["frames"]}


def seconds(profile: dict[str, Any], name: str) -> float:
    frames, (only,) = profile["shared"]["frames"], profile["profiles"]
    found = zip(only["samples"], only["weights"], strict=True)
    return sum(float(weight) for stack, weight in found if any(frames[frame]["name"] == name for frame in stack))


def test_cpu_time_counts_and_waiting_does_not(threads: None, tmp_path: Path) -> None:
    sampler = CpuSampler(tmp_path / "profile.json")
    until = time.monotonic() + 60
    while seconds(found := sampler.speedscope(), "work_hard") < 0.5 and time.monotonic() < until:
        sampler.sample()
        time.sleep(0.01)
    # The first sample may find the idle thread on its way to its wait, which costs a little.
    assert seconds(found, "work_hard") >= 0.5 and seconds(found, "wait_idly") < 0.05
    (profile,) = found["profiles"]
    assert len(profile["samples"]) == len(profile["weights"]) and min(profile["weights"]) > 0
    assert profile["endValue"] == pytest.approx(sum(profile["weights"]))
    assert {frame for sample in profile["samples"] for frame in sample} == set(range(len(found["shared"]["frames"])))


@pytest.mark.parametrize("py_spy", [True, False])
def test_the_file_is_speedscopes(threads: None, py_spy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not py_spy:
        monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)
    said: list[str] = []
    with profiling(tmp_path / "profile.json", said.append):
        time.sleep(1.0)
    assert ("by py-spy" in said[0]) is py_spy and "speedscope.app" in said[-1], said
    found = json.loads((tmp_path / "profile.json").read_text())
    assert found["$schema"].startswith("https://www.speedscope.app/"), said
    assert "work_hard" in names(found), said


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--profile"), profiling(tmp_path / "no" / "profile.json", print):
        pytest.fail("it has begun")
