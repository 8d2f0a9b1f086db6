"""How many episodes an engine has at once, by the load that it tells over HTTP."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from rollq.events import Finish
from rollq_worker.engine.pool import EnginePool
from rollq_worker.failures import Drained
from rollq_worker.protocols import Generated
from tests.rollq_worker.engine.clients import generate, raise_drained
from tests.rollq_worker.engine.engine_servers import Answer, good_reply, scripted_engine
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

    def test_an_engine_has_no_more_requests_than_seats(self) -> None:
        inside: list[object] = []
        most: list[int] = []
        two = threading.Barrier(2, timeout=60)

        def in_pairs(body: dict[str, Any]) -> dict[str, Any]:
            inside.append(body)
            most.append(len(inside))
            two.wait()
            inside.pop()  # before the answer, which makes room for the next
            return good_reply(body)

        with scripted_engine(*[in_pairs] * 8) as engine, ThreadPoolExecutor(8) as threads:
            pool = EnginePool([engine.url], concurrency=2)

            def episode(sample: int) -> Generated:
                try:
                    return generate(pool, f"run/group/{sample}")
                finally:
                    pool.end(f"run/group/{sample}")

            assert all(generated.finish is Finish.STOP for generated in threads.map(episode, range(8)))
            pool.close()
        assert max(most) == 2

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

    def test_a_thread_that_played_a_job_leaves_its_next_attempt_alone(self) -> None:
        """That attempt plays in another thread, while the first one plays another job."""
        with scripted_engine() as engine, ThreadPoolExecutor(1) as thread:
            pool = EnginePool([engine.url], concurrency=4)
            generate(pool, "run/group/0")
            pool.end("run/group/0")
            thread.submit(generate, pool, "run/group/0").result(60)
            generate(pool, "run/group/1")
            assert pool._placement.episodes(engine.url) == 2
            pool.close()
