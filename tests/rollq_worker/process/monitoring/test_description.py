"""What a worker says of itself, from what it counts while it plays a real job."""

from dataclasses import replace
from typing import cast

import pytest
import requests

from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import (
    AWAY,
    PAUSED,
    READY,
    STALLED,
    EngineUse,
    live_workers,
    register,
)
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.scheduling.load_watch import Idle
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.monitoring.description import WINDOW_S, Description
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.process.ledgers import submit


def test_rates_are_those_of_the_last_seconds(runner: JobRunner, ledger: Ledger) -> None:
    clock = [100.0]
    describe = Description(runner, cast(EnginePool, runner.engine), lambda: clock[0])
    assert (describe().turns_s, describe().tokens_s) == (0.0, 0.0)
    runner.run(submit(ledger))
    clock[0] += 10.0
    worker = describe()
    sampled = runner.engine.traffic.replies().sampled_tokens
    assert sampled > 0
    assert worker.turns_s == pytest.approx(runner.leases.played().turns / 10, abs=0.01)
    assert worker.tokens_s == pytest.approx(sampled / 10, abs=0.1)
    for _ in range(3):  # looks that are older than the window count no more
        clock[0] += WINDOW_S
        worker = describe()
    assert (worker.turns_s, worker.tokens_s) == (0.0, 0.0)


def test_runs_that_are_left_to_other_workers_are_told_with_the_reason(
    runner: JobRunner, ledger: Ledger
) -> None:
    assert runner.run(submit(ledger, env="game@0123456789ab"))["stop"] == "released"
    worker = Description(runner, cast(EnginePool, runner.engine))()
    [(run, why)] = worker.left_alone
    assert run == "r" and "game@0123456789ab" in why and "rollq worker --env FILE" in why
    register(ledger.redis, worker)
    assert live_workers(ledger.redis) == [worker]


def test_engines_are_told_with_their_state_and_survive_the_way_through_redis(
    runner: JobRunner, ledger: Ledger
) -> None:
    pool = cast(EnginePool, runner.engine)
    describe = Description(runner, pool)
    url = pool.engines[0].name
    worker = describe()
    assert worker.engines == (EngineUse(url, READY, 0),)
    assert (worker.name, worker.slots, worker.busy, worker.waits, worker.engine) == (
        "w",
        4,
        0,
        (),
        READY,
    )
    for idle, state in ((Idle.PAUSED, PAUSED), (Idle.STALLED, STALLED)):
        pool._loads._idle[pool.engines[0].url] = idle
        assert describe().engines[0].state == state
    pool.engines[0]._availability.mark_down("gone", unreachable=True)
    worker = describe()
    assert (worker.engine, worker.engines[0].state) == (AWAY, AWAY)
    told = replace(worker, engines=(EngineUse(url, PAUSED, 1, 7, 3, 0.5), *worker.engines))
    register(ledger.redis, told)
    assert live_workers(ledger.redis) == [told]


def test_a_paused_engine_that_takes_no_requests_is_not_away(
    runner: JobRunner,
) -> None:
    """As a sync that failed leaves it. The watch of an engine that is away asks it so."""
    with replaying() as url:
        pool = EnginePool([url])
        [engine] = pool.engines
        describe = Description(runner, pool)
        for path, state in (("pause_generation", PAUSED), ("continue_generation", READY)):
            requests.post(f"{url}/{path}", json={}, timeout=10)
            assert engine.ready() == (state == READY)
            assert describe().engines[0].state == state
        pool.close()
