"""Generations in flight: versions, the queue, request ids and new weights."""

import asyncio

import pytest

from rollq_worker.replay_engine.http_bodies import HttpError
from rollq_worker.replay_engine.scheduler import Generation, Scheduler
from tests.clock import Clock


def test_tokens_belong_to_the_version_of_their_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollq_worker.replay_engine.scheduler.time", clock := Clock())

    async def pause_and_update() -> None:
        scheduler = Scheduler(version="a")
        generation = Generation(rid="r", total=1000, seconds=4000.0)
        running = asyncio.create_task(scheduler.run(generation))
        await asyncio.sleep(0)
        clock.ahead += 1000.0
        await scheduler.pause("in_place")
        scheduler.set_version("b")
        clock.ahead += 1000.0
        released = generation.released()
        assert 250 <= released < 500
        scheduler.resume()
        clock.ahead += 4000.0
        await running
        assert generation.spans == [("a", 0, released), ("b", released, 1000)]
        assert generation.released() == 1000

    asyncio.run(pause_and_update())


def test_a_full_queue_and_a_duplicate_are_refused() -> None:
    async def overfill() -> None:
        scheduler = Scheduler(version="a", max_running=1, max_queued=1)
        first, second = (Generation(rid=rid, total=10, seconds=60) for rid in "ab")
        tasks = [asyncio.create_task(scheduler.run(one)) for one in (first, second)]
        await asyncio.sleep(0)
        with pytest.raises(HttpError) as full:
            await scheduler.run(Generation(rid="c", total=10, seconds=1))
        with pytest.raises(HttpError) as twice:
            await scheduler.run(Generation(rid="a", total=10, seconds=1))
        assert (full.value.status, twice.value.status) == (503, 400)
        assert (scheduler.running, scheduler.waiting) == (1, 1)
        scheduler.abort("a")
        await tasks[0]
        assert (scheduler.running, scheduler.waiting) == (1, 0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (scheduler.running, scheduler.waiting) == (0, 0)

    asyncio.run(overfill())


def test_new_weights_wait_for_running_requests() -> None:
    async def load_while_running() -> None:
        scheduler = Scheduler(version="a")
        generation = Generation(rid="r", total=10, seconds=0.05)
        running = asyncio.create_task(scheduler.run(generation))
        await asyncio.sleep(0)
        await scheduler.load_weights("b")
        assert running.done()
        assert generation.spans == [("a", 0, 10)] and scheduler.version == "b"

    asyncio.run(load_while_running())
