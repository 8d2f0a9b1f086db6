"""A turn that is interrupted goes on from its partial ids: against the real server and the replay engine."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.job import Budget, Job
from rollq.trajectory import Finish, Stop, Trajectory
from rollq_worker.engine.hang_watch import EngineWatch
from tests.contract.conftest import Process, Server
from tests.contract.episodes import Operator, Stage, pieces, play_disturbed, stage, wait_until, write
from tests.contract.test_engine_contract import LONG, Running

TURN = {False: 256, True: 1000}
"""Tokens of a turn, by whether the server is a real one: there they last some seconds."""
TRIES = 5
"""A real server may finish a turn before it is interrupted."""


def long_turn(stage: Stage, sample: int = 0) -> Job:
    """One turn of exactly TURN tokens, without a stop token anywhere in it."""
    tokens = TURN[stage.server.real]
    budget = Budget(max_new_tokens=tokens, max_turns=1)
    sampling = {"min_new_tokens": tokens, "temperature": 1.0}
    return Job(run="r", group="long", sample=sample, size=16, env="shop", task=1, sampling=sampling, budget=budget)


@pytest.fixture
def held_server(slow_server: Server) -> Server:
    """Its generations do not end before it lets go of them; a real one's take some seconds."""
    slow_server.hold()
    return slow_server


@pytest.fixture
def held_stage(held_server: Server, tmp_path: Path) -> Iterator[Stage]:
    with stage(held_server, tmp_path) as found:
        yield found


class Over(Exception):
    """The turn ended before it was interrupted."""


class Playing:
    """Episodes in the background."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.pool = ThreadPoolExecutor(16)
        self.started: list[Future[Trajectory]] = []

    def __enter__(self) -> "Playing":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.server.let_go()
        self.pool.shutdown()

    def start(self, job: Job) -> "Future[Trajectory]":
        self.started.append(self.pool.submit(self.stage.play, job))
        return self.started[-1]

    def wait_for(self, running: int, waiting: int = 0) -> None:
        """Until the server has so many requests. Raises Over."""

        def there() -> bool:
            if any(reply.done() for reply in self.started):
                [reply.result() for reply in self.started if reply.done()]
                raise Over
            load = self.stage.server.get("/v1/loads").json()["loads"][0]
            return bool((load["num_running_reqs"], load["num_waiting_reqs"]) == (running, waiting))

        wait_until(there)


def interrupted(stage: Stage, scenario: Callable[[int], Trajectory], pieces_at_least: int = 2) -> Trajectory:
    """Play the scenario, given the number of the sample, until the interruption came while there was a turn."""
    for sample in range(TRIES):
        with suppress(Over):
            trajectory = scenario(sample)
            if len(pieces(trajectory)) >= pieces_at_least:
                return trajectory
        assert stage.server.real, "nothing here depends on time"
    pytest.fail(f"{TRIES} turns were over before they were interrupted")


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
def test_an_aborted_turn_goes_on_with_what_is_left_of_its_budget(held_stage: Stage, order: str) -> None:
    operator = Operator(held_stage)

    def aborted_twice(sample: int) -> Trajectory:
        held_stage.server.hold()
        before = len(held_stage.proxy.calls())
        with Playing(held_stage) as playing:
            reply = playing.start(long_turn(held_stage, sample))
            for times in (1, 2):  # the continuation is interrupted as well
                playing.wait_for(1)
                getattr(operator, order)()
                wait_until(lambda times=times: reply.done() or len(held_stage.proxy.calls()) >= before + times)
            playing.wait_for(1)
            held_stage.server.let_go()
            return reply.result(150)

    trajectory = interrupted(held_stage, aborted_twice)
    whole(held_stage, trajectory)
    if not held_stage.server.real:
        assert [len(piece.ids) for piece in pieces(trajectory)] == [128, 64, 64]  # half, half of the rest, all
    used = list(dict.fromkeys(version for version in trajectory.versions if version))
    assert used == [version for version in operator.versions if version in used]  # in their order
    if len(operator.versions) > 1:
        assert len(used) > 1


@pytest.mark.parametrize("order", HOLDS)
def test_a_turn_over_a_pause_is_one_reply_with_both_versions(held_stage: Stage, order: str) -> None:
    operator = Operator(held_stage)

    def paused(sample: int) -> Trajectory:
        held_stage.server.hold()
        before = operator.versions[-1]
        with Playing(held_stage) as playing:
            reply = playing.start(long_turn(held_stage, sample))
            playing.wait_for(1)
            time.sleep(0.3 if held_stage.server.real else 0)  # for tokens of the old weights
            getattr(operator, order)()
            held_stage.server.let_go()
            trajectory = reply.result(150)
        if [span.version for span in pieces(trajectory)[0].versions] != [before, operator.versions[-1]]:
            raise Over
        return trajectory

    trajectory = interrupted(held_stage, paused, pieces_at_least=1)
    whole(held_stage, trajectory)
    assert len(pieces(trajectory)) == 1


def test_queued_and_aborted_costs_nothing(held_stage: Stage) -> None:
    with Running(held_stage.server) as others, Playing(held_stage) as playing:
        for number in range(4):
            others.start(f"running-{number}", **LONG)
        others.wait_for(4)
        replies = [playing.start(long_turn(held_stage, sample)) for sample in range(2)]
        playing.wait_for(4, 2)
        Operator(held_stage).abort_by_id()
        wait_until(lambda: len(held_stage.proxy.calls()) == 2)
        playing.wait_for(4, 2)
        held_stage.server.let_go()
        held_stage.server.post("/abort_request", {"abort_all": True})
        trajectories = [reply.result(150) for reply in replies]
    for trajectory in trajectories:
        whole(held_stage, trajectory)
        body = held_stage.replies(trajectory.job)[0][1]
        assert body["output_ids"] == [] and "prompt_tokens" not in body["meta_info"]


def ours(stage: Stage) -> Process:
    if stage.server.process is None:
        pytest.skip("this server was started by somebody else")
    return stage.server.process


def test_a_hang_costs_the_request_and_not_the_episode(held_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    process, watch = ours(held_stage), EngineWatch(held_stage.engine)
    monkeypatch.setattr("rollq_worker.engine.hang_watch.SLOW_S", 0.0)
    monkeypatch.setattr("rollq_worker.engine.control.PROBE_TIMEOUT_S", 1.0)
    with Playing(held_stage) as playing:
        reply = playing.start(long_turn(held_stage))
        playing.wait_for(1)
        process.signal(signal.SIGSTOP)
        try:
            watch.look()
            assert held_stage.engine.available  # once is not enough
            watch.look()
            wait_until(lambda: not held_stage.engine.available)
            assert not reply.done()
        finally:
            process.signal(signal.SIGCONT)
        held_stage.server.let_go()
        trajectory = reply.result(120)
    whole(held_stage, trajectory)
    assert held_stage.engine.available and held_stage.engine.outage_s > 0


def test_a_crash_costs_the_request_and_not_the_episode(held_stage: Stage) -> None:
    """What was sampled since the last reply is lost with the engine; the turn is sampled again from there."""
    process = ours(held_stage)
    operator = Operator(held_stage)

    def crashed(sample: int) -> Trajectory:
        held_stage.server.hold()
        before = len(held_stage.proxy.calls())
        with Playing(held_stage) as playing:
            reply = playing.start(long_turn(held_stage, sample))
            playing.wait_for(1)
            operator.abort_by_id()  # a partial reply, which must survive
            wait_until(lambda: reply.done() or len(held_stage.proxy.calls()) > before)
            playing.wait_for(1)
            process.crash()
            playing.wait_for(1)
            held_stage.server.let_go()
            return reply.result(120)

    trajectory = interrupted(held_stage, crashed)
    whole(held_stage, trajectory)
    assert len(pieces(trajectory)) == 2
    assert held_stage.engine.available


def jobs(first: int, count: int) -> list[Job]:
    budget, sampling = Budget(max_turns=3, max_new_tokens=128), {"temperature": 1.0}
    return [
        Job(run="r", group=f"g{i}", env="shop", task=i % 50, sampling=sampling, budget=budget)
        for i in range(first, first + count)
    ]


def disturbed(trajectories: Sequence[Trajectory]) -> bool:
    """Enough of them were interrupted, under enough versions."""
    aborts = sum(piece.finish is Finish.ABORT for t in trajectories for piece in pieces(t))
    return aborts >= 5 and len({version for t in trajectories for version in t.versions if version}) >= 4


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
    # A real server on a CPU takes a minute for every 32.
    count, seconds = (
        (int(os.environ.get("ROLLQ_TEST_EPISODES", 32)), (2.0, 4.0)) if slow_server.real else (8, (0.2, 0.5))
    )
    trajectories: list[Trajectory] = []
    with stage(slow_server, tmp_path) as playing:
        while not disturbed(trajectories):  # by chance, or on a busy machine, the operator came too late
            assert len(trajectories) < TRIES * count
            trajectories += play_disturbed(playing, jobs(len(trajectories), count), at_once=8, seconds=seconds)
        for trajectory in trajectories:
            playing.check(trajectory)
        Operator(playing).rename()  # /model_info does not name weights whose update was answered with UNFLUSHED
    used = {version for trajectory in trajectories for version in trajectory.versions if version}
    write(file := tmp_path / "x.jsonl", trajectories)

    versions = ("--versions", ",".join(used))  # they are the same weights
    code, found = audited(capsys, file, slow_server, *versions)
    assert (code, found["verdict"], found["shift"]) == (0, "ok", 0)
    assert found["trajectories"] == len(trajectories) and found["skipped"] == 0
    assert found["tokens"] == sum(trajectory.sampled_tokens for trajectory in trajectories)
    assert found["p99_abs"] <= 0.01 and found["max_abs"] <= 0.05

    code, own = audited(capsys, file, slow_server)
    assert code == 1 and own["verdict"] == "incomplete" and own["skipped"] > 0
    for by in (1, -1):
        code, moved = audited(capsys, shift(file, tmp_path / "moved.jsonl", by), slow_server, *versions)
        assert (code, moved["verdict"], moved["shift"]) == (1, "bad", -by)
    assert threading.active_count() < 50
