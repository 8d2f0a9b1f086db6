"""Generations in flight: versions, the queue, request ids and new weights."""

import asyncio

import pytest

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


def test_who_leaves_makes_room_for_the_next_one() -> None:
    async def leave() -> None:
        scheduler = Scheduler(version="a", max_running=1)
        tasks = [
            asyncio.create_task(scheduler.run(Generation(rid=rid, total=10, seconds=60)))
            for rid in "ab"
        ]
        await asyncio.sleep(0)
        assert (scheduler.running, scheduler.waiting) == (1, 1)
        scheduler.abort("a")
        await tasks[0]
        assert (scheduler.running, scheduler.waiting) == (1, 0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (scheduler.running, scheduler.waiting) == (0, 0)

    asyncio.run(leave())


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


def test_new_weights_that_are_given_up_let_requests_in_again() -> None:
    async def give_up(*, paused: bool) -> None:
        scheduler = Scheduler(version="a")
        running = asyncio.create_task(scheduler.run(Generation(rid="r", total=10, seconds=60)))
        await asyncio.sleep(0)
        loading = asyncio.create_task(scheduler.load_weights("b"))
        await asyncio.sleep(0)
        if paused:
            await scheduler.pause("in_place")
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        late = asyncio.create_task(scheduler.run(Generation(rid="late", total=10, seconds=0)))
        await asyncio.sleep(0.05)
        assert late.done() != paused and scheduler.version == "a"
        scheduler.resume()
        await late
        running.cancel()

    asyncio.run(give_up(paused=False))
    asyncio.run(give_up(paused=True))


def test_to_continue_what_is_not_paused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollq_worker.replay_engine.scheduler.time", clock := Clock())

    async def resume() -> None:
        scheduler = Scheduler(version="a")
        generation = Generation(rid="r", total=1000, seconds=4000.0)
        running = asyncio.create_task(scheduler.run(generation))
        await asyncio.sleep(0)
        clock.ahead += 1000.0
        released = generation.released()
        scheduler.set_version("b")
        scheduler.resume()
        assert generation.released() >= released >= 250
        scheduler.abort("r")
        await running
        assert (
            generation.spans[0] == ("a", 0, released)
            and generation.spans[-1][2] == generation.released()
        )

    asyncio.run(resume())


def test_a_pause_that_is_given_up_is_seen() -> None:
    """No request gets in, so /ready must not say that one would."""

    async def give_up() -> None:
        scheduler = Scheduler(version="a")
        running = asyncio.create_task(scheduler.run(Generation(rid="r", total=10, seconds=60)))
        await asyncio.sleep(0)
        pausing = asyncio.create_task(scheduler.pause("abort"))
        await asyncio.sleep(0)
        pausing.cancel()
        await asyncio.gather(running, pausing, return_exceptions=True)
        assert scheduler.pausing
        scheduler.resume()
        await scheduler.run(Generation(rid="late", total=10, seconds=0))

    asyncio.run(asyncio.wait_for(give_up(), 10))
