"""How many episodes an engine has at once, by the load that it tells over HTTP."""

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from rollq.trajectory import Finish
from rollq_worker.engine.pool import EnginePool
from rollq_worker.failures import Drained
from tests.rollq_worker.engine.clients import generate, raise_drained
from tests.rollq_worker.engine.engine_servers import Answer, scripted_engine
from tests.waiting import until


class TestSeats:
    LOAD: ClassVar = {"num_running_reqs": 2, "num_waiting_reqs": 9, "token_usage": 0.9}

    def test_an_engine_with_a_queue_gets_fewer_episodes(self) -> None:
        """The others wait, and go on when one ends."""
        with scripted_engine(**{"v1/loads?include=core,queues": (200, {"loads": [self.LOAD]})}) as engine:
            pool = EnginePool([engine.url], concurrency=4)
            for sample in range(4):
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(generate, pool, f"run/group/{sample}").result(60)
            assert not pool.has_seat
            pool._loads.look(pool.engines[0])
            with ThreadPoolExecutor(1) as thread:
                waiting = thread.submit(generate, pool, "run/group/3")
                until(lambda: pool._placement._engines[engine.url].seats.waiting == 1)
                assert len(engine.bodies()) == 4
                pool.end("run/group/0")
                assert waiting.result(60).finish is Finish.STOP
            pool.close()

    @pytest.mark.parametrize("answer", [(404, {}), (200, {"loads": []}), (500, b""), "reset"])
    def test_an_engine_that_tells_no_load_keeps_all_seats(self, answer: Answer) -> None:
        with scripted_engine(**{"v1/loads?include=core,queues": answer}) as engine:
            pool = EnginePool([engine.url], concurrency=4)
            generate(pool, "run/group/0")
            for _ in range(3):
                pool._loads.look(pool.engines[0])
            assert pool._placement.limit(engine.url) == 4 and pool.available
            pool.close()

    def test_an_episode_that_waits_can_be_stopped(self) -> None:
        with scripted_engine() as engine:
            pool = EnginePool([engine.url], concurrency=1)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(generate, pool, "run/group/0").result(60)
            with pytest.raises(Drained):
                generate(pool, "run/group/1", check=raise_drained)
            pool.end("run/group/1")
            pool.end("run/group/0")
            assert pool.has_seat
            pool.close()
