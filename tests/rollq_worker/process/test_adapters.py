"""Runs with LoRA adapters, on a replay engine: which version samples each turn, and what they wait
for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollq.ledger.ledger import Ledger
from rollq.ledger.versions import Versions
from rollq.weights import Fleet
from rollq_worker.process.job_task import JobRunner
from tests.rollq.samples import reader
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.process.ledgers import act_at, drain_at, submit
from tests.rollq_worker.process.replay_servers import LoraServer
from tests.waiting import until


@pytest.fixture
def engine_url() -> Iterator[str]:
    """Of a replay engine without adapters."""
    with replaying(LoraServer) as url:
        yield url


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollq_worker.engine.served_policies.ASK_S", 0.1)
    monkeypatch.setattr("rollq_worker.process.attempts.bound_engines.READ_AGAIN_S", 0.1)
    monkeypatch.setattr("rollq_worker.engine.pool.CHECK_S", 0.05)


@pytest.fixture
def fleet(engine_url: str) -> Fleet:
    return Fleet([engine_url])


def publish(ledger: Ledger, step: int, version: str) -> None:
    Versions(ledger.redis, ledger.run).publish(step, version, f"token {version}")


def sync(
    fleet: Fleet, ledger: Ledger, folder: Path, step: int, version: str, adapter: str = "math"
) -> None:
    fleet.load_adapter(adapter, folder, version)
    publish(ledger, step, version)


def versions(ledger: Ledger, job_id: str = "r/g/0") -> list[str]:
    """Of the sampled tokens, each where it begins."""
    found: list[str] = []
    for version in reader(ledger).trajectory(job_id).versions:
        if version is not None and found[-1:] != [version]:
            found.append(version)
    return found


def in_background(runner: JobRunner, job_id: str) -> tuple[threading.Thread, list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(runner.run(job_id)), daemon=True)
    thread.start()
    return thread, found


def test_each_turn_is_sampled_by_the_published_version(
    runner: JobRunner, ledger: Ledger, fleet: Fleet, tmp_path: Path
) -> None:
    sync(fleet, ledger, tmp_path, 0, "6")
    act_at(runner, ledger, "r/g/0", 4, lambda: sync(fleet, ledger, tmp_path, 1, "7"))
    summary = runner.run(submit(ledger, adapter="math"))
    assert (summary["stop"], summary["reward"]) == ("done", 1.0)
    assert versions(ledger) == ["6", "7"]


def test_an_episode_that_resumes_keeps_what_an_older_version_sampled(
    runner: JobRunner, ledger: Ledger, fleet: Fleet, tmp_path: Path
) -> None:
    sync(fleet, ledger, tmp_path, 0, "6")
    job_id = submit(ledger, adapter="math")
    drain_at(runner, ledger, job_id, 4)
    assert runner.run(job_id)["stop"] == "released"
    sync(fleet, ledger, tmp_path, 1, "7")
    fleet.unload_adapter("math", keep=["7"])
    runner.draining.clear()
    assert runner.run(job_id)["stop"] == "done"
    assert versions(ledger) == ["6", "7"] and reader(ledger).stats()["resumed"] == 1


def test_two_runs_with_two_adapters_play_on_one_engine(
    runner: JobRunner, ledger: Ledger, fleet: Fleet, tmp_path: Path
) -> None:
    other = Ledger(ledger.redis, "other")
    sync(fleet, ledger, tmp_path, 0, "m1")
    sync(fleet, other, tmp_path, 0, "c1", adapter="code")
    ids = [submit(ledger, adapter="math"), submit(other, run="other", adapter="code")]
    threads = [in_background(runner, job_id) for job_id in ids]
    for thread, found in threads:
        thread.join(60)
        assert found[0]["stop"] == "done"
    assert versions(ledger) == ["m1"] and versions(other, "other/g/0") == ["c1"]


def test_a_job_waits_for_a_publication_and_for_an_engine_that_has_it(
    runner: JobRunner, ledger: Ledger, fleet: Fleet, tmp_path: Path
) -> None:
    thread, found = in_background(runner, submit(ledger, adapter="math"))
    until(lambda: runner.engine.awaits_weights("r"))
    assert runner.engine.traffic.asking["r/g/0"] == 1  # its time is the engine's
    publish(ledger, 0, "6")  # no engine has it
    until(lambda: runner.engine.usage()[0].engine.policies.outdated)
    assert runner.engine.stopped_s("r") > 0
    fleet.load_adapter("math", tmp_path, "6")
    thread.join(60)
    assert (found[0]["stop"], found[0]["reward"]) == ("done", 1.0)
    assert versions(ledger) == ["6"] and reader(ledger).stats()["failures"] == {}


def test_a_pinned_job_is_sampled_by_its_version(
    runner: JobRunner, ledger: Ledger, fleet: Fleet, tmp_path: Path
) -> None:
    sync(fleet, ledger, tmp_path, 0, "6")
    sync(fleet, ledger, tmp_path, 1, "7")
    job_id = submit(ledger, adapter="math", weight_version="6")
    assert runner.run(job_id)["stop"] == "done"
    assert versions(ledger) == ["6"]
    job_id = submit(ledger, group="other", adapter="math", weight_version="5")
    assert runner.run(job_id)["stop"] == "released"  # it holds nothing up while no engine has it
    fleet.load_adapter("math", tmp_path, "5")
    until(lambda: runner.run(job_id)["stop"] == "done")
    assert versions(ledger, job_id) == ["5"]


def test_a_version_that_is_unloaded_in_the_middle_fails_no_job(
    runner: JobRunner, ledger: Ledger, fleet: Fleet, tmp_path: Path
) -> None:
    """The engine loads it again by itself."""
    sync(fleet, ledger, tmp_path, 0, "6")
    act_at(runner, ledger, "r/g/0", 4, lambda: fleet.unload_adapter("math", keep=[]))
    assert runner.run(submit(ledger, adapter="math"))["stop"] == "done"
    assert versions(ledger) == ["6"]
