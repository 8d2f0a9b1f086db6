"""An interrupted turn continues from its partial ids, against real SGLang and vLLM servers and the
replay engine.
"""

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
from rollq.events import Finish, Stop
from rollq.job import Budget, Job
from rollq.trajectory import Trajectory
from rollq_worker.engine.hang_watch import HangWatch
from tests.contract.background_requests import BackgroundRequests
from tests.contract.conftest import PARAMS, VLLM, Process, Server, VllmServer
from tests.contract.interrupted_episodes import (
    RecordedEngine,
    operator_of,
    play_interrupted,
    recorded_engine,
    sampled_pieces,
    write,
)
from tests.waiting import until

pytestmark = pytest.mark.parametrize("slow_server", [*PARAMS, VLLM], indirect=True)
TURN = {False: 256, True: 1000}
"""Tokens of a turn, by whether the server is real: on a real one they last some seconds."""
TRIES = 5
"""A real server may finish a turn before it is interrupted."""


def long_turn(recorded: RecordedEngine, sample: int = 0) -> Job:
    """One turn of exactly TURN tokens, without a stop token anywhere in it."""
    tokens = TURN[recorded.server.real]
    budget = Budget(max_new_tokens=tokens, max_turns=1)
    sampling = {"min_new_tokens": tokens, "temperature": 1.0}
    return Job(
        run="r",
        group="long",
        sample=sample,
        size=16,
        env="shop",
        task=1,
        sampling=sampling,
        budget=budget,
    )


@pytest.fixture
def gated(slow_server: Server, tmp_path: Path) -> Iterator[RecordedEngine]:
    """A server whose generations end when its gate opens; those of a real one take some seconds."""
    slow_server.close_gate()
    with recorded_engine(slow_server, tmp_path) as recorded:
        yield recorded


class TurnOver(Exception):
    """The turn ended before it was interrupted."""


class BackgroundEpisodes:
    """Episodes in the background; the gate opens at the end."""

    def __init__(self, recorded: RecordedEngine) -> None:
        self.recorded = recorded
        self.pool = ThreadPoolExecutor(16)
        self.started: list[Future[Trajectory]] = []

    def __enter__(self) -> "BackgroundEpisodes":
        return self

    def __exit__(self, *exception: object) -> None:
        self.recorded.server.open_gate()
        self.pool.shutdown()

    def start(self, job: Job) -> "Future[Trajectory]":
        self.started.append(self.pool.submit(self.recorded.play, job))
        return self.started[-1]

    def wait_for(self, running: int, queued: int = 0) -> None:
        """Until the server has so many requests. Raises TurnOver."""

        def loaded() -> bool:
            if over := [reply for reply in self.started if reply.done()]:
                assert all(reply.result() for reply in over)
                raise TurnOver
            return self.recorded.server.load() == (running, queued)

        until(loaded)


def interrupted(
    recorded: RecordedEngine, scenario: Callable[[int], Trajectory], least_pieces: int = 2
) -> Trajectory:
    """Play the scenario, given the number of the sample, until the interruption came
    during a turn.
    """
    for sample in range(TRIES):
        with suppress(TurnOver):
            trajectory = scenario(sample)
            if len(sampled_pieces(trajectory)) >= least_pieces:
                return trajectory
        assert recorded.server.real, "on the replay engine nothing depends on time"
    pytest.fail(f"{TRIES} turns were over before they were interrupted")


def assert_whole_turn(recorded: RecordedEngine, trajectory: Trajectory) -> None:
    """The turn has all of its budget in one trace, as the proxy saw it."""
    parts = sampled_pieces(trajectory)
    assert trajectory.sampled_tokens == trajectory.job.budget.max_new_tokens
    assert trajectory.stop is Stop.LENGTH and len(trajectory.traces) == 1
    assert {part.turn for part in parts} == {0}
    assert [part.finish for part in parts[:-1]] == [Finish.ABORT] * (len(parts) - 1)
    assert parts[-1].finish is Finish.LENGTH
    recorded.check(trajectory)


ABORTS = ["abort_by_id", "abort_all", "rename_and_abort", "load_and_abort", "pause_abort"]
PAUSES = ["pause_in_place", "pause_retract", "rename"]


@pytest.mark.parametrize("interruption", ABORTS)
def test_an_aborted_turn_continues_with_the_rest_of_its_budget(
    gated: RecordedEngine, interruption: str
) -> None:
    operator = operator_of(gated)

    def aborted_twice(sample: int) -> Trajectory:
        gated.server.close_gate()
        before = len(gated.proxy.calls())
        with BackgroundEpisodes(gated) as playing:
            reply = playing.start(long_turn(gated, sample))
            for times in (1, 2):  # the continuation is interrupted as well
                playing.wait_for(1)
                getattr(operator, interruption)()
                until(
                    lambda times=times: reply.done() or len(gated.proxy.calls()) >= before + times
                )
            playing.wait_for(1)
            gated.server.open_gate()
            return reply.result(150)

    trajectory = interrupted(gated, aborted_twice)
    assert_whole_turn(gated, trajectory)
    if not gated.server.real:
        assert [len(piece.ids) for piece in sampled_pieces(trajectory)] == [
            128,
            64,
            64,
        ]  # half, half of the rest, all
    used = list(dict.fromkeys(version for version in trajectory.versions if version))
    assert used == [version for version in operator.versions if version in used]  # in their order
    if len(operator.versions) > 1:
        assert len(used) > 1


@pytest.mark.parametrize("interruption", PAUSES)
def test_a_turn_over_a_pause_is_one_reply_with_both_versions(
    gated: RecordedEngine, interruption: str
) -> None:
    operator = operator_of(gated)

    def paused(sample: int) -> Trajectory:
        gated.server.close_gate()
        before = operator.versions[-1]
        with BackgroundEpisodes(gated) as playing:
            reply = playing.start(long_turn(gated, sample))
            playing.wait_for(1)
            time.sleep(0.3 if gated.server.real else 0)  # for tokens of the old weights
            getattr(operator, interruption)()
            gated.server.open_gate()
            trajectory = reply.result(150)
        if [span.version for span in sampled_pieces(trajectory)[0].versions] != [
            before,
            operator.versions[-1],
        ]:
            raise TurnOver
        return trajectory

    trajectory = interrupted(gated, paused, least_pieces=1)
    assert_whole_turn(gated, trajectory)
    assert len(sampled_pieces(trajectory)) == 1


def test_queued_and_aborted_costs_nothing(gated: RecordedEngine) -> None:
    with BackgroundRequests(gated.server) as others, BackgroundEpisodes(gated) as playing:
        others.fill()
        replies = [playing.start(long_turn(gated, sample)) for sample in range(2)]
        playing.wait_for(4, 2)
        operator_of(gated).abort_by_id()
        until(lambda: len(gated.proxy.calls()) == 2)
        playing.wait_for(4, 2)
        gated.server.open_gate()
        operator_of(gated).abort_all()
        trajectories = [reply.result(150) for reply in replies]
    for trajectory in trajectories:
        assert_whole_turn(gated, trajectory)
        body = gated.replies(trajectory.job)[0][1]
        assert body["output_ids"] == [] and "prompt_tokens" not in body["meta_info"]


def own_process(recorded: RecordedEngine) -> Process:
    if recorded.server.process is None:
        pytest.skip("this server was running before the tests")
    return recorded.server.process


def test_a_hang_costs_the_request_and_not_the_episode(
    gated: RecordedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, watch = own_process(gated), HangWatch(gated.engine)
    monkeypatch.setattr("rollq_worker.engine.hang_watch.SLOW_S", 0.0)
    monkeypatch.setattr("rollq_worker.engine.sglang.server.QUESTION_TIMEOUT_S", 1.0)
    monkeypatch.setattr("rollq_worker.engine.vllm.server.SCHEDULER_TIMEOUT_S", 1.0)
    with BackgroundEpisodes(gated) as playing:
        reply = playing.start(long_turn(gated))
        playing.wait_for(1)
        process.signal(signal.SIGSTOP)
        try:
            watch.check()
            assert gated.engine.available  # once is not enough
            watch.check()
            until(lambda: not gated.engine.available)
            assert not reply.done()
        finally:
            process.signal(signal.SIGCONT)
        gated.server.open_gate()
        trajectory = reply.result(120)
    assert_whole_turn(gated, trajectory)
    assert gated.engine.available and gated.engine._shared.clock.seconds > 0


def test_a_crash_costs_the_request_and_not_the_episode(gated: RecordedEngine) -> None:
    """What was sampled since the last reply is lost with the engine; the turn is sampled again from
    there.
    """
    process = own_process(gated)
    operator = operator_of(gated)

    def crashed(sample: int) -> Trajectory:
        gated.server.close_gate()
        before = len(gated.proxy.calls())
        with BackgroundEpisodes(gated) as playing:
            reply = playing.start(long_turn(gated, sample))
            playing.wait_for(1)
            operator.abort_by_id()  # a partial reply, which must survive
            until(lambda: reply.done() or len(gated.proxy.calls()) > before)
            playing.wait_for(1)
            process.crash()
            playing.wait_for(1)
            gated.server.open_gate()
            return reply.result(120)

    trajectory = interrupted(gated, crashed)
    assert_whole_turn(gated, trajectory)
    assert len(sampled_pieces(trajectory)) == 2
    assert gated.engine.available


def jobs(env: str, first: int, count: int) -> list[Job]:
    budget, sampling = Budget(max_turns=3, max_new_tokens=128), {"temperature": 1.0}
    return [
        Job(run="r", group=f"g{i}", env=env, task=i % 50, sampling=sampling, budget=budget)
        for i in range(first, first + count)
    ]


def interrupted_enough(trajectories: Sequence[Trajectory]) -> bool:
    """Enough of them were interrupted, under enough versions."""
    aborts = sum(piece.finish is Finish.ABORT for t in trajectories for piece in sampled_pieces(t))
    return (
        aborts >= 5
        and len({version for t in trajectories for version in t.versions if version}) >= 4
    )


def audited(
    capsys: pytest.CaptureFixture[str], file: Path, server: Server, *flags: str
) -> tuple[int, dict[str, Any]]:
    code = cli.main(["audit", str(file), "--engine", server.url, "--json", *flags])
    captured = capsys.readouterr()
    assert captured.out, captured.err
    return code, json.loads(captured.out)


def shift(file: Path, to: Path, by: int) -> Path:
    """Some of the trajectories, with the logprobs of the sampled tokens moved along by so many of
    them.
    """
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
    # A real server on a CPU takes some seconds to a minute for every 32.
    count, pause_s = (
        (int(os.environ.get("ROLLQ_TEST_EPISODES", 32)), 3.0) if slow_server.real else (8, 0.35)
    )
    # vLLM computes the logprobs of whole prompts for each score, so it gets short ones.
    env = "shop:desk" if isinstance(slow_server, VllmServer) else "shop"
    trajectories: list[Trajectory] = []
    with recorded_engine(slow_server, tmp_path) as playing:
        operator = operator_of(playing)
        while not interrupted_enough(
            trajectories
        ):  # by chance, or on a busy machine, the operator came too late
            assert len(trajectories) < TRIES * count
            started = time.monotonic()
            batch = jobs(env, len(trajectories), count)
            trajectories += play_interrupted(playing, operator, batch, at_once=8, seconds=pause_s)
            pause_s = min(
                pause_s, (time.monotonic() - started) / 8
            )  # on a quick machine the operator must be quick
        for trajectory in trajectories:
            playing.check(trajectory)
        # /model_info does not name weights whose update was answered with UNFLUSHED
        operator.rename()
    used = {version for trajectory in trajectories for version in trajectory.versions if version}
    write(file := tmp_path / "x.jsonl", trajectories)

    versions = ("--versions", ",".join(used))  # they are the same weights
    code, found = audited(capsys, file, slow_server, *versions)
    assert (code, found["verdict"], found["shift"]) == (0, "ok", 0)
    assert found["trajectories"] == len(trajectories) and found["skipped"] == 0
    assert found["tokens"] == sum(trajectory.sampled_tokens for trajectory in trajectories)
    assert found["p99_abs"] <= 0.01 and found["floor"]["p99_abs"] <= 0.01

    code, own = audited(capsys, file, slow_server)
    assert code == 1 and own["verdict"] == "incomplete" and own["skipped"] > 0
    for by in (1, -1):
        code, moved = audited(
            capsys, shift(file, tmp_path / "moved.jsonl", by), slow_server, *versions
        )
        assert (code, moved["verdict"], moved["shift"]) == (1, "bad", -by)
    assert threading.active_count() < 50
