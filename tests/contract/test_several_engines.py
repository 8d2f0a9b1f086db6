"""Episodes over two engines, of which one dies and comes back. Replay engines, because two real
ones need 4 GB.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from rollq.events import Finish
from rollq.job import Budget, Job
from rollq.trajectory import Trajectory
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.scheduling.placement import EnginePlacement
from tests.contract.conftest import Process, Server, replay
from tests.contract.interrupted_episodes import RecordedEngine, sampled_pieces
from tests.recorder import Recorder, recording
from tests.waiting import until


@dataclass(frozen=True)
class RecordedPool(RecordedEngine):
    """Several servers, each behind a proxy, and one pool."""

    engine: EnginePool
    proxies: Sequence[Recorder] = ()

    def play(self, job: Job) -> Trajectory:
        try:
            return super().play(job)
        finally:
            self.engine.end(job.id)

    @cached_property
    def answered(self) -> dict[str, list[dict[str, Any]]]:
        """The answered calls by job, when all have been played."""
        found: dict[str, list[dict[str, Any]]] = {}
        for call in chain(*(proxy.calls() for proxy in self.proxies)):
            if call["status"] == 200:
                found.setdefault(call["request"]["rid"].rpartition("/")[0], []).append(call)
        return found

    def replies(self, job: Job) -> list[tuple[list[int], dict[str, Any]]]:
        calls = [(call["request"]["input_ids"], call["reply"]) for call in self.answered[job.id]]
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
        pool = EnginePool(
            [proxy.url for proxy in proxies], stop_ids=stops, vocab_size=tokenizer.vocab_size
        )
        stack.callback(pool.close)
        pool.watch()
        yield RecordedPool(servers[0], proxies[0], pool, proxies)


GROUPS = 16
"""So many that each of two engines has some of them, whatever their addresses."""


def samples(sample: int, turns: int, tokens: int) -> list[Job]:
    """That sample of each group."""
    budget, sampling = Budget(max_turns=turns, max_new_tokens=tokens), {"temperature": 1.0}
    return [
        Job(
            run="r",
            group=f"g{i}",
            sample=sample,
            size=2,
            env="shop",
            task=i,
            sampling=sampling,
            budget=budget,
        )
        for i in range(GROUPS)
    ]


def groups_at(proxy: Recorder, since: int = 0) -> set[str]:
    """The groups of all its calls but the first ones."""
    return {call["headers"]["X-SMG-Routing-Key"] for call in proxy.calls()[since:]}


def groups_of(proxy: Recorder, proxies: Sequence[Recorder]) -> set[str]:
    """The groups that go to this engine while none has too many episodes."""
    urls = [each.url for each in proxies]
    groups = {f"{job.run}/{job.group}" for job in samples(0, 1, 1)}
    return {group for group in groups if EnginePlacement().enter(group, group, urls) == proxy.url}


def play_through_a_crash(
    recorded: RecordedPool, victim: Process, early: Sequence[Job], late: Sequence[Job]
) -> list[Trajectory]:
    """Play all early jobs at once. The first server is killed when it has answered some, and
    started again. Then play the late ones.
    """
    dying, other = recorded.proxies
    with ThreadPoolExecutor(GROUPS) as threads:
        playing = [threads.submit(recorded.play, job) for job in early]
        until(lambda: len(dying.calls()) >= 2)
        answered = len(other.calls())
        victim.crash()
        until(lambda: len(other.calls()) > answered)  # it goes on, with the episodes of both
        until(lambda: all(engine.available for engine in recorded.engine.engines))
        trajectories = [one.result() for one in playing]
        before = len(dying.calls())
    with ThreadPoolExecutor(8) as threads:  # so few that no engine has too many
        trajectories += threads.map(recorded.play, late)
    assert groups_at(dying, since=before) >= groups_of(dying, recorded.proxies), (
        "its groups came back to the engine"
    )
    return trajectories


def check_all(recorded: RecordedPool, trajectories: Sequence[Trajectory]) -> None:
    for trajectory in trajectories:
        recorded.check(trajectory)
        assert all(piece.finish is not Finish.ABORT for piece in sampled_pieces(trajectory))
    assert recorded.engine.available and recorded.engine.outage_s < 1.0


def test_an_engine_dies_under_16_episodes_and_comes_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(2):
            (tmp_path / str(number)).mkdir()
        servers = [
            stack.enter_context(replay(tmp_path / str(number), latency=0.3)) for number in range(2)
        ]
        recorded = stack.enter_context(recorded_pool(servers, tmp_path))
        early, late = (samples(number, turns=3, tokens=256) for number in range(2))
        assert servers[0].process is not None
        trajectories = play_through_a_crash(recorded, servers[0].process, early, late)
        assert [trajectory.job for trajectory in trajectories] == [*early, *late]
        check_all(recorded, trajectories)


def test_siblings_find_their_prefix_in_one_engine(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(2):
            (tmp_path / str(number)).mkdir()
        servers = [stack.enter_context(replay(tmp_path / str(number))) for number in range(2)]
        recorded = stack.enter_context(recorded_pool(servers, tmp_path))
        with ThreadPoolExecutor(8) as threads:
            list(
                threads.map(
                    recorded.play,
                    [job for number in range(2) for job in samples(number, 2, tokens=64)],
                )
            )
        where = [groups_at(proxy) for proxy in recorded.proxies]
        assert where[0] and where[1] and not where[0] & where[1]
        assert where[0] | where[1] == {f"r/g{number}" for number in range(GROUPS)}
