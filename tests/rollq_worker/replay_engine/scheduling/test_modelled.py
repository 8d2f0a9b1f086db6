"""Generations whose times come from the model of an engine: ends, aborts, pauses, memory and cache."""

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.replay_engine.http_bodies import HttpError
from rollq_worker.replay_engine.scheduling.modelled import BLOCK, ModelledGeneration, ModelledScheduler, blocks
from rollq_worker.simulation.engine_model import EngineShape
from tests.clock import Clock

QUICK = EngineShape(
    step_s=1e-4,
    prefill_token_s=0.0,
    running_s=0.0,
    kv_token_s=0.0,
    kv_tokens=10_000,
    max_running=4,
    chunk_tokens=4096,
)
SLOW = replace(QUICK, step_s=1000.0)
Play: TypeAlias = Callable[[ModelledScheduler], Coroutine[Any, Any, None]]


def generation(rid: str, prompt: int = 200, said: int = 20, first: int = 0) -> ModelledGeneration:
    ids, output = array("I", range(first, first + prompt)), array("I", range(said))
    return ModelledGeneration(rid=rid, ids=ids, said=output, max_new_tokens=said)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("rollq_worker.replay_engine.scheduling.modelled.time", clock := Clock())
    return clock


async def started(scheduler: ModelledScheduler, one: ModelledGeneration) -> asyncio.Task[None]:
    task = asyncio.create_task(scheduler.run(one))
    await asyncio.sleep(0)
    return task


def test_a_generation_ends_when_the_model_says_so() -> None:
    async def two_turns() -> None:
        scheduler = ModelledScheduler(QUICK, version="a")
        first = generation("first")
        await scheduler.run(first)
        assert (first.released(), first.cached, first.spans) == (20, 0, [("a", 0, 20)])
        second = ModelledGeneration(
            rid="second", ids=first.ids + first.said + array("I", [7] * 50), said=array("I", [1]), max_new_tokens=None
        )
        await scheduler.run(second)
        assert second.cached == 220 // BLOCK * BLOCK
        assert scheduler.idle and scheduler.load().used_tokens == 0
        scheduler.flush_cache()
        await scheduler.run(again := generation("again"))
        assert again.cached == 0

    asyncio.run(two_turns())


def test_an_abort_returns_what_was_released(clock: Clock) -> None:
    async def abort() -> None:
        scheduler = ModelledScheduler(SLOW, version="a")
        task = await started(scheduler, one := generation("r"))
        clock.ahead += 5500.0  # the prefill's token and four more
        scheduler.abort("r")
        await task
        assert (one.aborted, one.started, one.released()) == (True, True, 5)
        assert one.spans == [("a", 0, 5)]
        clock.ahead += 1000.0
        assert scheduler.load().used_tokens == 0

    asyncio.run(abort())


def test_a_client_that_hangs_up_frees_its_memory(clock: Clock) -> None:
    async def hang_up() -> None:
        scheduler = ModelledScheduler(SLOW, version="a")
        task = await started(scheduler, generation("r"))
        clock.ahead += 2500.0
        assert scheduler.load().used_tokens > 200
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        clock.ahead += 1000.0
        assert (scheduler.load().running, scheduler.load().used_tokens) == (0, 0)

    asyncio.run(hang_up())


@pytest.mark.parametrize(("mode", "retractions"), [("in_place", 0), ("retract", 1)])
def test_a_pause_stops_the_clock(clock: Clock, mode: str, retractions: int) -> None:
    async def pause_and_update() -> None:
        scheduler = ModelledScheduler(SLOW, version="a")
        task = await started(scheduler, one := generation("r"))
        clock.ahead += 5500.0
        await scheduler.pause(mode)
        assert scheduler.idle is (mode == "retract")
        clock.ahead += 50_000.0
        scheduler.set_version("b")
        assert (one.released(), scheduler.load().waiting) == (5, retractions)
        scheduler.resume()
        clock.ahead += 5500.0
        await scheduler.pause("in_place")  # has the model look at the clock
        scheduler.resume()
        clock.ahead += 50_000.0
        await scheduler.pause("in_place")
        scheduler.resume()
        await task
        assert one.spans == [("a", 0, 5), ("b", 5, 20)]
        assert one.retractions == retractions

    asyncio.run(pause_and_update())


def test_an_aborted_request_leaves_a_retracting_pause_at_once(clock: Clock) -> None:
    async def abort_while_paused() -> None:
        scheduler = ModelledScheduler(SLOW, version="a")
        tasks = [await started(scheduler, generation(rid)) for rid in "ab"]
        clock.ahead += 2500.0
        await scheduler.pause("retract")
        scheduler.abort("a")
        await tasks[0]
        assert not tasks[1].done()
        await scheduler.pause("in_place")
        scheduler.abort("b")
        await asyncio.sleep(0)
        scheduler.resume()
        await tasks[1]

    asyncio.run(abort_while_paused())


@pytest.mark.parametrize("late", ["abort", "hang up", "new weights", "in_place", "retract"])
def test_what_is_over_stays_over_when_the_alarm_is_late(clock: Clock, late: str) -> None:
    async def come_first() -> None:
        scheduler = ModelledScheduler(SLOW, version="a")
        generations = [generation(rid) for rid in "ab"]
        tasks = [await started(scheduler, one) for one in generations]
        clock.ahead += 50_000.0  # both are over, and the event loop had no time to notice
        if late == "abort":
            scheduler.abort("a")
        elif late == "hang up":
            tasks[0].cancel()
        elif late == "new weights":
            scheduler.set_version("b")
        else:
            await scheduler.pause(late)
            scheduler.set_version("b")
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in generations:
            assert (one.spans, one.aborted, one.retracted) == ([("a", 0, 20)], False, False)

    asyncio.run(asyncio.wait_for(come_first(), 10))


def test_a_full_queue_and_a_prompt_too_long_are_refused() -> None:
    async def refuse() -> None:
        scheduler = ModelledScheduler(replace(SLOW, max_running=1), version="a", max_queued=1)
        tasks = [await started(scheduler, generation(rid)) for rid in "ab"]
        with pytest.raises(HttpError) as full:
            await scheduler.run(generation("c"))
        with pytest.raises(HttpError) as twice:
            await scheduler.run(generation("a"))
        assert (full.value.status, twice.value.status) == (503, 400)
        scheduler.abort(None)
        await asyncio.gather(*tasks)
        with pytest.raises(HttpError, match="memory"):
            await scheduler.run(generation("d", prompt=10_000))

    asyncio.run(refuse())


IDS = st.lists(st.integers(0, 3), max_size=200).map(lambda ids: array("I", ids))


@given(IDS, IDS, IDS)
def test_equal_beginnings_are_equal_blocks(shared: array, one: array, other: array) -> None:  # type: ignore[type-arg]
    left, right = blocks(shared + one), blocks(shared + other)
    whole = len(shared) // BLOCK
    assert left[:whole] == right[:whole]
    assert sum(tokens for _, tokens in left) == len(shared + one)
    for number, (mine, theirs) in enumerate(zip(left, right, strict=False)):
        same = (shared + one)[: number * BLOCK + mine[1]] == (shared + other)[: number * BLOCK + theirs[1]]
        assert (mine == theirs) == same
