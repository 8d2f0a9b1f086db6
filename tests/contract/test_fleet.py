"""A fleet's weight update while episodes are played, on real SGLang and vLLM servers and on replay
engines.
"""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.errors import SyncError
from rollq.job import Budget, Job
from rollq.weights import Fleet
from tests.contract.conftest import PARAMS, VLLM, Server, replay
from tests.contract.interrupted_episodes import RecordedEngine, recorded_engine, write
from tests.waiting import until

EPISODES = 8
STEPS = ["pause", "update", "verify", "continue"]


def jobs() -> list[Job]:
    """Episodes of several turns, with sampling that the audit can repeat."""
    budget, sampling = Budget(max_turns=4, max_new_tokens=200), {"temperature": 1.0}
    return [
        Job(
            run="r",
            group="g",
            sample=i,
            size=EPISODES,
            env="shop",
            task=1,
            sampling=sampling,
            budget=budget,
        )
        for i in range(EPISODES)
    ]


def sampled(call: dict[str, Any]) -> bool:
    """Whether a recorded call was answered with tokens."""
    return call["status"] == 200 and bool(call["reply"]["output_ids"])


def engine_versions(recorded: RecordedEngine, job: Job) -> list[str]:
    """The version of each sampled token, as the engine gave it to the proxy."""
    spans = [
        span for _, reply in recorded.replies(job) for span in reply["meta_info"]["weight_versions"]
    ]
    return [span["version"] for span in spans for _ in range(span["end"] - span["start"])]


@pytest.mark.parametrize("slow_server", [*PARAMS, VLLM], indirect=True)
@pytest.mark.parametrize(
    "mode", ["retract", *(pytest.param(m, marks=pytest.mark.slow) for m in ("in_place", "abort"))]
)
def test_a_sync_in_mid_run_loses_no_token_and_names_each_version(
    slow_server: Server, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = slow_server.model_path()
    slow_server.close_gate()
    with recorded_engine(slow_server, tmp_path) as playing, ThreadPoolExecutor(EPISODES) as pool:
        episodes = [pool.submit(playing.play, job) for job in jobs()]
        # The first turn of a real server has ended, or four are half-way on a replay engine.
        until(
            lambda: (
                any(map(sampled, playing.proxy.calls()))
                if slow_server.real
                else slow_server.load() == (4, 4)
            ),
            300,
        )
        [done] = Fleet([slow_server.url], pause=mode).update(path, "w1")
        slow_server.open_gate()
        trajectories = [episode.result(600) for episode in episodes]
        for trajectory in trajectories:
            playing.check(trajectory)
        versions = [engine_versions(playing, job) for job in jobs()]
    assert done.loaded and done.checksum
    assert [[v for v in t.versions if v is not None] for t in trajectories] == versions
    assert {name for each in versions for name in each} == {"default", "w1"}
    assert all(
        each == sorted(each, key=["default", "w1"].index) for each in versions
    )  # no older weights came back
    assert all(trajectory.reward is not None for trajectory in trajectories)

    write(file := tmp_path / "x.jsonl", trajectories)
    flags = [
        "--engine",
        slow_server.url,
        "--json",
        "--versions",
        "default,w1",
    ]  # they are the same weights
    capsys.readouterr()
    assert cli.main(["audit", str(file), *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["shift"], found["skipped"]) == ("ok", 0, 0)
    assert found["tokens"] == sum(t.sampled_tokens for t in trajectories)


def test_requests_that_come_during_a_transfer_wait_and_nothing_is_lost(slow_server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        with Fleet([slow_server.url]).paused("sent"):
            assert slow_server.get("/ready").status_code == 503
            body = {"sampling_params": {"max_new_tokens": 2}}
            replies = [
                pool.submit(slow_server.generate, slow_server.prompt(), **body) for _ in range(4)
            ]
            time.sleep(0.3)
            assert not any(reply.done() for reply in replies)
        spans = [reply.result(60)["meta_info"]["weight_versions"] for reply in replies]
    assert all([span["version"] for span in each] == ["sent"] for each in spans)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two replay engines, each a process that can die."""
    with ExitStack() as stack:
        yield [stack.enter_context(replay(tmp_path_factory.mktemp("engine"))) for _ in range(2)]


def process(server: Server) -> Any:
    assert server.process
    return server.process


@pytest.mark.parametrize("step", STEPS)
def test_an_engine_that_dies_is_named_and_the_same_update_repairs(
    pair: list[Server], step: str
) -> None:
    good, victim = pair
    fleet = Fleet([server.url for server in pair])
    old, new = f"before-{step}", f"after-{step}"
    fleet.update("weights/old", old)

    def kill(url: str, doing: str) -> None:
        if (url, doing) == (victim.url, step):
            process(victim).signal(signal.SIGKILL)
            process(victim).popen.wait(60)

    with pytest.raises(SyncError) as caught:
        fleet.update("weights/new", new, kill)
    assert list(caught.value.failed) == [victim.url]
    assert caught.value.failed[victim.url].startswith(f"{step}: ")
    assert [done.url for done in caught.value.updated] == [good.url]
    assert good.get("/ready").status_code == 200
    assert fleet.versions() == {good.url: new, victim.url: None}

    process(victim).start()
    assert fleet.versions() == {
        good.url: new,
        victim.url: "default",
    }  # it came back with the weights it started with
    assert [done.loaded for done in fleet.update("weights/new", new)] == [False, True]
    assert fleet.versions() == {good.url: new, victim.url: new}
    assert (
        victim.generate(victim.prompt(), sampling_params={"max_new_tokens": 1})["meta_info"][
            "weight_version"
        ]
        == new
    )


def test_an_engine_that_freezes_while_it_loads_is_repaired_when_it_wakes(
    pair: list[Server],
) -> None:
    victim = pair[1]
    fleet = Fleet([server.url for server in pair], update_timeout_s=5)

    def freeze(url: str, doing: str) -> None:
        if (url, doing) == (victim.url, "update"):
            process(victim).signal(signal.SIGSTOP)

    try:
        with pytest.raises(SyncError) as caught:
            fleet.update("weights/frozen", "frozen", freeze)
    finally:
        process(victim).signal(signal.SIGCONT)
    assert caught.value.failed == {
        victim.url: "update: no answer to /update_weights_from_disk within 5 s"
    }
    assert victim.get("/ready").status_code == 503  # it stays paused
    assert [done.loaded for done in fleet.update("weights/frozen", "frozen")] == [False, True]
    assert victim.get("/ready").status_code == 200
