"""Episodes over two engines, of which one dies and comes back. Replay engines, because two real ones need 4 GB."""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollq.job import Budget, Job
from rollq.trajectory import Finish, Trajectory
from rollq_worker.engine.pool import EnginePool
from tests.contract.conftest import Process, Server, replay
from tests.contract.interrupted_episodes import RecordedEngine, sampled_pieces
from tests.recorder import Recorder, recording
from tests.waiting import until


@dataclass(frozen=True)
class RecordedPool(RecordedEngine):
    """Several servers, each behind a proxy, and one pool."""

    engine: EnginePool
    proxies: Sequence[Recorder] = ()

    def replies(self, job: Job) -> list[tuple[list[int], dict[str, Any]]]:
        seen = [dataclasses.replace(self, proxy=proxy) for proxy in self.proxies]
        calls = [call for one in seen for call in RecordedEngine.replies(one, job)]
        return sorted(calls, key=lambda call: len(call[0]))  # prompts only grow


@contextmanager
def recorded_pool(servers: Sequence[Server], folder: Path) -> Iterator[RecordedPool]:
    tokenizer = servers[0].tokenizer
    stops = [tokenizer.added_tokens["<|im_end|>"], *tokenizer.eos_ids]
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(recording(server.url, folder / f"calls{number}.jsonl"))
            for number, server in enumerate(servers)
        ]
        pool = EnginePool([proxy.url for proxy in proxies], stop_ids=stops, vocab_size=tokenizer.vocab_size)
        stack.callback(pool.close)
        pool.watch()
        yield RecordedPool(servers[0], proxies[0], pool, proxies)


def grouped_jobs(count: int, turns: int, tokens: int) -> list[Job]:
    """Jobs in groups of four."""
    budget, sampling = Budget(max_turns=turns, max_new_tokens=tokens), {"temperature": 1.0}
    return [
        Job(
            run="r", group=f"g{i // 4}", sample=i % 4, size=4, env="shop", task=i // 4, sampling=sampling, budget=budget
        )
        for i in range(count)
    ]


def play_through_a_crash(recorded: RecordedPool, victim: Process, jobs: Sequence[Job]) -> list[Trajectory]:
    """Play 16 at a time. The first server is killed when it has answered some, and started again. A quarter of the jobs
    begins after that."""
    dying, other = recorded.proxies
    late = len(jobs) * 3 // 4
    with ThreadPoolExecutor(16) as threads:
        playing = [threads.submit(recorded.play, job) for job in jobs[:late]]
        until(lambda: len(dying.calls()) >= 8)
        answered = len(other.calls())
        victim.crash()
        until(lambda: len(other.calls()) > answered)  # it goes on, with the episodes of both
        until(lambda: all(engine.available for engine in recorded.engine.engines))
        back = len(dying.calls())
        playing += [threads.submit(recorded.play, job) for job in jobs[late:]]
        trajectories = [one.result(300) for one in playing]
    assert len(dying.calls()) > back, "its groups came back to the engine"
    return trajectories


def check_all(recorded: RecordedPool, trajectories: Sequence[Trajectory], jobs: Sequence[Job]) -> None:
    assert [trajectory.job for trajectory in trajectories] == list(jobs)
    for trajectory in trajectories:
        recorded.check(trajectory)
        assert all(piece.finish is not Finish.ABORT for piece in sampled_pieces(trajectory))
    assert recorded.engine.available and recorded.engine.outage_s < 1.0


def test_an_engine_dies_under_16_episodes_and_comes_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(2):
            (tmp_path / str(number)).mkdir()
        servers = [stack.enter_context(replay(tmp_path / str(number), latency=0.3)) for number in range(2)]
        recorded = stack.enter_context(recorded_pool(servers, tmp_path))
        jobs = grouped_jobs(64, turns=3, tokens=256)
        assert servers[0].process is not None
        trajectories = play_through_a_crash(recorded, servers[0].process, jobs)
        check_all(recorded, trajectories, jobs)


def test_siblings_find_their_prefix_in_one_engine(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(2):
            (tmp_path / str(number)).mkdir()
        servers = [stack.enter_context(replay(tmp_path / str(number))) for number in range(2)]
        recorded = stack.enter_context(recorded_pool(servers, tmp_path))
        jobs = grouped_jobs(32, turns=2, tokens=64)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(recorded.play, jobs))
        where = [{call["headers"]["X-SMG-Routing-Key"] for call in proxy.calls()} for proxy in recorded.proxies]
        assert where[0] and where[1] and not where[0] & where[1]
        assert where[0] | where[1] == {f"r/{job.group}" for job in jobs}
