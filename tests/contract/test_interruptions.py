"""A turn that is interrupted goes on from its partial ids: against the real server and the replay engine."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.job import Budget, Job
from rollq.trajectory import Finish, Stop, Trajectory
from tests.contract.conftest import Server
from tests.contract.episodes import Operator, Stage, pieces, play_disturbed, stage, wait_until, write
from tests.contract.test_engine_contract import LONG, Running

TURN = {"replay": 240, "sglang": 600}
"""Tokens of a turn that lasts some seconds."""


def long_turn(stage: Stage, sample: int = 0) -> Job:
    """One turn of exactly TURN tokens, without a stop token anywhere in it."""
    tokens = TURN[kind(stage.server)]
    budget = Budget(max_new_tokens=tokens, max_turns=1)
    sampling = {"min_new_tokens": tokens, "temperature": 1.0}
    return Job(run="r", group="long", sample=sample, size=16, env="shop", task=1, sampling=sampling, budget=budget)


@pytest.fixture
def slow_stage(slow_server: Server, tmp_path: Path) -> Iterator[Stage]:
    with stage(slow_server, tmp_path) as found:
        yield found


def kind(server: Server) -> str:
    return "replay" if server.get("/server_info").json()["version"].startswith("rollq") else "sglang"


class Playing:
    """Episodes in the background."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.pool = ThreadPoolExecutor(16)
        self.started: list[Future[Trajectory]] = []

    def __enter__(self) -> "Playing":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.server.reset()
        self.pool.shutdown()

    def start(self, job: Job) -> "Future[Trajectory]":
        self.started.append(self.pool.submit(self.stage.play, job))
        return self.started[-1]

    def wait_for(self, running: int, waiting: int = 0) -> None:
        """Until the server has so many requests, the running ones with tokens to show."""

        def there() -> bool:
            over = [reply.result() for reply in self.started if reply.done()]
            assert not over, "the turn is over already"
            load = self.stage.server.get("/v1/loads").json()["loads"][0]
            return bool((load["num_running_reqs"], load["num_waiting_reqs"]) == (running, waiting))

        wait_until(there)


def whole(stage: Stage, trajectory: Trajectory) -> None:
    """The turn has all of its budget, in one trace, as the proxy saw it."""
    parts = pieces(trajectory)
    assert trajectory.sampled_tokens == trajectory.job.budget.max_new_tokens
    assert trajectory.stop is Stop.LENGTH and len(trajectory.traces) == 1
    assert {part.turn for part in parts} == {0}
    assert [part.finish for part in parts[:-1]] == [Finish.ABORT] * (len(parts) - 1)
    assert parts[-1].finish is Finish.LENGTH
    stage.check(trajectory)


ABORTS = ["abort_by_id", "abort_all", "rename_and_abort", "load_and_abort", "pause_abort"]
HOLDS = ["pause_in_place", "pause_retract", "rename"]


@pytest.mark.parametrize("order", ABORTS)
def test_an_aborted_turn_goes_on_with_what_is_left_of_its_budget(slow_stage: Stage, order: str) -> None:
    operator = Operator(slow_stage)
    with Playing(slow_stage) as playing:
        reply = playing.start(long_turn(slow_stage))
        for times in (1, 2):  # the continuation is interrupted as well
            playing.wait_for(1)
            getattr(operator, order)()
            wait_until(lambda times=times: reply.done() or len(slow_stage.proxy.calls()) >= times)
        trajectory = reply.result(150)
    whole(slow_stage, trajectory)
    assert len(pieces(trajectory)) >= 2
    used = list(dict.fromkeys(version for version in trajectory.versions if version))
    assert used == [version for version in operator.versions if version in used]  # in their order
    if len(operator.versions) > 1:
        assert len(used) > 1


@pytest.mark.parametrize("order", HOLDS)
def test_a_turn_over_a_pause_is_one_reply_with_both_versions(slow_stage: Stage, order: str) -> None:
    operator = Operator(slow_stage)
    with Playing(slow_stage) as playing:
        reply = playing.start(long_turn(slow_stage))
        playing.wait_for(1)
        time.sleep(0.3)
        getattr(operator, order)()
        trajectory = reply.result(150)
    whole(slow_stage, trajectory)
    (piece,) = pieces(trajectory)
    assert [span.version for span in piece.versions][-1] == operator.versions[-1]


def test_queued_and_aborted_costs_nothing(slow_stage: Stage) -> None:
    with Running(slow_stage.server) as others, Playing(slow_stage) as playing:
        for number in range(4):
            others.start(f"running-{number}", **LONG)
        others.wait_for(4)
        replies = [playing.start(long_turn(slow_stage, sample)) for sample in range(2)]
        playing.wait_for(4, 2)
        Operator(slow_stage).abort_by_id()
        wait_until(lambda: len(slow_stage.proxy.calls()) == 2)
        slow_stage.server.post("/abort_request", {"abort_all": True})
        trajectories = [reply.result(150) for reply in replies]
    for trajectory in trajectories:
        whole(slow_stage, trajectory)
        body = slow_stage.replies(trajectory.job)[0][1]
        assert body["output_ids"] == [] and "prompt_tokens" not in body["meta_info"]


def test_a_crash_costs_the_request_and_not_the_episode(slow_stage: Stage) -> None:
    """What was sampled since the last reply is lost with the engine; the turn is sampled again from there."""
    crash = slow_stage.server.crash
    if crash is None:
        pytest.skip("this server was started by somebody else")
    operator = Operator(slow_stage)
    with Playing(slow_stage) as playing:
        reply = playing.start(long_turn(slow_stage))
        playing.wait_for(1)
        operator.abort_by_id()  # a partial reply, which must survive
        wait_until(lambda: len(slow_stage.proxy.calls()) >= 1)
        playing.wait_for(1)
        crash()
        trajectory = reply.result(120)
    whole(slow_stage, trajectory)
    assert len(pieces(trajectory)) == 2
    assert slow_stage.engine.available


def jobs(count: int, **changes: Any) -> list[Job]:
    budget = Budget(max_turns=3, max_new_tokens=128)
    return [
        Job(run="r", group=f"g{i}", env="shop", task=i % 50, sampling={"temperature": 1.0}, budget=budget, **changes)
        for i in range(count)
    ]


def audited(capsys: pytest.CaptureFixture[str], file: Path, server: Server, *flags: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["audit", str(file), "--engine", server.url, "--json", *flags])
    captured = capsys.readouterr()
    assert captured.out, captured.err
    return code, json.loads(captured.out)


def shift(file: Path, to: Path, by: int) -> Path:
    """Some of the trajectories, with the logprobs of the sampled tokens moved along by so many of them."""
    with to.open("w") as out:
        for text in file.read_text().splitlines()[:16]:
            line = json.loads(text)
            places = [i for i, bit in enumerate(line["mask"]) if bit]
            moved = [line["logprobs"][i] for i in places]
            for i, p in zip(places, moved[-by:] + moved[:-by], strict=True):
                line["logprobs"][i] = p
            out.write(json.dumps(line) + "\n")
    return to


def test_episodes_through_pauses_aborts_and_new_weights_pass_the_audit(
    slow_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = kind(slow_server) == "sglang"
    with stage(slow_server, tmp_path) as playing:
        wanted = jobs(64 if real else 8)
        trajectories = play_disturbed(playing, wanted, at_once=8, seconds=(2.0, 4.0) if real else (0.2, 0.5))
        for trajectory in trajectories:
            playing.check(trajectory)
    assert len(trajectories) == len(wanted)
    assert sum(piece.finish is Finish.ABORT for t in trajectories for piece in pieces(t)) >= 5
    used = {version for trajectory in trajectories for version in trajectory.versions if version}
    assert len(used) >= 4
    write(file := tmp_path / "x.jsonl", trajectories)

    versions = ("--versions", ",".join(used))  # they are the same weights
    code, found = audited(capsys, file, slow_server, *versions)
    assert (code, found["verdict"], found["shift"]) == (0, "ok", 0)
    assert found["trajectories"] == len(wanted) and found["skipped"] == 0
    assert found["tokens"] == sum(trajectory.sampled_tokens for trajectory in trajectories)
    # One rounding step of bf16 between decoding and a long prefill is 0.05, and the largest may just pass it.
    assert found["p99_abs"] <= 0.01 and found["max_abs"] <= 0.1

    code, own = audited(capsys, file, slow_server)
    assert code == 1 and own["verdict"] == "incomplete" and own["skipped"] > 0
    for by in (1, -1):
        code, moved = audited(capsys, shift(file, tmp_path / "moved.jsonl", by), slow_server, *versions)
        assert (code, moved["verdict"], moved["shift"]) == (1, "bad", -by)
    assert threading.active_count() < 50
