"""What a pool says of its engines: how they are used, and whether they are paused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollq_worker.engine.exchange.server import EngineLoad
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.scheduling import load_watch
from rollq_worker.engine.scheduling.load_watch import Idle
from tests.rollq_worker.engine.clients import HeldReply, generate
from tests.rollq_worker.engine.engine_servers import Answer, scripted_engine
from tests.waiting import until

LOAD = {"num_running_reqs": 2, "num_waiting_reqs": 0, "token_usage": 0.25}
LOADS = "v1/loads?include=core"


def test_an_engine_is_used_by_the_episodes_that_play_there() -> None:
    with scripted_engine(**{LOADS: (200, {"loads": [LOAD]})}) as engine:
        pool = EnginePool([engine.url])

        def use() -> tuple[int, EngineLoad | None]:
            [usage] = pool.usage()
            return usage.episodes, usage.load

        assert use() == (0, None)
        generate(pool, "run/group/0")
        pool._loads.observe(pool.engines[0])
        load = EngineLoad(running=2, waiting=0, token_usage=0.25)
        assert use() == (1, load)
        pool.end("run/group/0")
        pool._loads.observe(pool.engines[0])
        assert use() == (0, None)  # it is not asked any more
        pool.close()


@pytest.mark.parametrize("answer", [(404, {}), (200, {"loads": []}), (500, b""), "reset"])
def test_an_engine_that_tells_no_load_is_used_all_the_same(answer: Answer) -> None:
    with scripted_engine(**{LOADS: answer}) as engine:
        pool = EnginePool([engine.url])
        generate(pool, "run/group/0")
        for _ in range(3):
            pool._loads.observe(pool.engines[0])
        assert pool.usage()[0].load is None and pool.available
        pool.close()


def test_a_thread_that_played_a_job_leaves_its_next_attempt_alone() -> None:
    """That attempt plays in another thread, while the first one plays another job."""
    with scripted_engine() as engine, ThreadPoolExecutor(1) as thread:
        pool = EnginePool([engine.url])
        generate(pool, "run/group/0")
        pool.end("run/group/0")
        thread.submit(generate, pool, "run/group/0").result(60)
        generate(pool, "run/group/1")
        assert pool.usage()[0].episodes == 2
        pool.close()


@pytest.mark.parametrize(
    ("ready", "paused"), [((503, {}), True), ((200, {}), False), ((404, {}), False)]
)
def test_an_engine_is_asked_whether_it_is_paused_once_a_request_is_slow(
    ready: Any, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldReply()

    def is_paused() -> list[bool]:
        pool._loads.observe(pool.engines[0])
        return [usage.idle is Idle.PAUSED for usage in pool.usage()]

    with scripted_engine(held, ready=ready) as engine, ThreadPoolExecutor(1) as thread:
        pool = EnginePool([engine.url])
        played = thread.submit(generate, pool, "run/group/0")
        until(engine.bodies)
        monkeypatch.setattr(load_watch, "SLOW_S", 1e9)
        assert is_paused() == [False]
        monkeypatch.setattr(load_watch, "SLOW_S", 0.0)
        assert is_paused() == [paused]
        held.release.set()
        played.result(60)
        pool.end("run/group/0")
        assert is_paused() == [False]  # it has nothing to do
        pool.close()
