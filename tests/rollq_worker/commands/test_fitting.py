"""Costs that were fitted to measured fleets: those that the fleets had come out, and foretell another fleet."""

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq_worker.commands.simulate.fitting import Real, fitted, fleet_like
from rollq_worker.commands.simulate.site import Steady
from rollq_worker.simulation.costs.table import ClientCosts, Costs, RedisCosts, WorkerCosts
from rollq_worker.simulation.fleet.run import FleetRun
from rollq_worker.simulation.fleet.traces import Episode

KNOWN = Costs(
    worker=WorkerCosts(turn_s=0.001, rollout_s=0.0008, message_s=0.0006),
    clients=ClientCosts(submit_group_s=0.0007, publish_s=0.001, take_rollout_s=0.0004),
    redis=RedisCosts(submit_group_s=1.5e-4, submit_job_s=2e-5, message_s=6e-4, claim_s=1e-4, append_s=7e-5,
                     append_kb_s=1.5e-6, complete_s=1.2e-4, renew_job_s=1e-5, take_group_s=1.5e-4,
                     read_rollout_s=4e-5, ack_group_s=2e-4, job_bytes=400.0, rollout_bytes=5000.0, token_bytes=8.0),
)  # fmt: skip
EPISODES = [Episode(4000, ((90, 200),) * turns) for turns in (6, 7, 8, 9, 10)]
ENGINE_TURN_S = 0.001
BUSY, CROWDED, WAITING = (1, 16, 0.0), (4, 16, 0.0), (1, 32, 0.5)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


def played(
    costs: Costs, processes: int, concurrency: int, latency_s: float, others: float = 0.0, seed: int = 7
) -> Real:
    """A fleet as it would have been played with these costs."""
    run = Steady(EPISODES, 0.0, 0.0, 0.0, ENGINE_TURN_S * 8, 0.0, 0.0, others)
    real = Real(processes, concurrency, latency_s, [run])
    found = FleetRun(fleet_like(real, run), costs, seed).play(least=400)
    used = {
        "worker_s": found.worker_cores / found.rollouts_a_s,
        "redis_s": found.redis_cpu_a_rollout_s,
        "client_s": (found.producer_busy + found.consumer_busy) / found.rollouts_a_s,
    }
    return replace(real, runs=[replace(run, rollouts_a_s=found.rollouts_a_s, **used)])


@settings(max_examples=5, deadline=None)
@given(
    factor=st.floats(0.5, 2.0),
    switch=st.floats(0.0, 1e-3),
    wake=st.floats(0.0, 2e-3),
    handover=st.floats(0.0, 4e-4),
    others=st.sampled_from([0.0, 0.6]),
)
def test_fitted_costs_foretell_a_fleet_that_was_not_measured(
    factor: float, switch: float, wake: float, handover: float, others: float
):
    true = replace(
        KNOWN,
        worker=replace(KNOWN.worker, switch_s=switch, wake_s=wake, handover_s=handover),
        redis=replace(KNOWN.redis, wake_s=wake / 20),
    )
    guessed = replace(
        KNOWN,
        worker=WorkerCosts(
            **{name: getattr(KNOWN.worker, name) * factor for name in ("turn_s", "rollout_s", "message_s")}
        ),
        clients=replace(KNOWN.clients, take_rollout_s=0.001),
        redis=replace(KNOWN.redis, message_s=0.0),
    )
    found = fitted(guessed, *(played(true, *fleet, others) for fleet in (BUSY, CROWDED, WAITING)))
    for fleet in ((2, 16, 0.0), (2, 16, 0.5), (4, 16, 0.5)):
        [real], [foretold] = (played(costs, *fleet, others, seed=11).runs for costs in (true, found))
        for name in ("worker_s", "redis_s", "rollouts_a_s"):
            assert getattr(foretold, name) == pytest.approx(getattr(real, name), rel=0.1), (fleet, name)


def test_the_ratio_of_a_turn_to_the_rest_of_a_rollout_stays():
    found = fitted(KNOWN, *(played(KNOWN, *fleet) for fleet in (BUSY, CROWDED, WAITING))).worker
    assert found.turn_s / found.rollout_s == pytest.approx(KNOWN.worker.turn_s / KNOWN.worker.rollout_s)


def test_calls_that_cost_more_alone_foretell_what_redis_uses():
    true = replace(KNOWN, redis=replace(KNOWN.redis, wake_s=4e-5))
    guessed = replace(KNOWN, redis=replace(KNOWN.redis.times(2.5), message_s=0.0))
    found = fitted(guessed, *(played(true, *fleet) for fleet in (BUSY, CROWDED, WAITING)))
    assert found.redis.times(found.redis.alone).claim_s == pytest.approx(guessed.redis.claim_s)
    for fleet in ((2, 16, 0.0), (2, 16, 0.5), (4, 16, 0.5)):
        [real], [foretold] = (played(costs, *fleet, seed=11).runs for costs in (true, found))
        assert foretold.redis_s == pytest.approx(real.redis_s, rel=0.1), fleet
