"""Laws of a simulated fleet: nothing is lost, Little's law, utilisation, the bound on staleness, the same seed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq_worker.simulation.amounts import Amount
from rollq_worker.simulation.costs.table import ClientCosts, Costs, RedisCosts, WorkerCosts
from rollq_worker.simulation.engine_model import EngineShape
from rollq_worker.simulation.fleet.bottlenecks import limit_now, limits
from rollq_worker.simulation.fleet.fleet import Engines, Fleet, Jobs, Trainer, Workers
from rollq_worker.simulation.fleet.run import FleetRun, Log
from rollq_worker.simulation.fleet.traces import Episode

COSTS = Costs(
    worker=WorkerCosts(turn_s=0.002, rollout_s=0.003, message_s=0.001),
    clients=ClientCosts(submit_group_s=0.001, publish_s=0.0005, take_rollout_s=0.0004),
    redis=RedisCosts(submit_group_s=2e-4, submit_job_s=3e-5, message_s=5e-4, claim_s=1e-4, append_s=1e-4,
                     append_kb_s=1e-6, complete_s=2e-4, renew_job_s=1e-5, take_group_s=1e-4, read_rollout_s=5e-5,
                     ack_group_s=1e-4, job_bytes=400.0, rollout_bytes=1000.0, token_bytes=3.0),
)  # fmt: skip
FREE = Costs()
FLEET = Fleet(
    engines=Engines(count=2, turn_s=Amount(1.0, 3.0)),
    workers=Workers(processes=2, concurrency=16),
    jobs=Jobs(turns=Amount(4.0, 9.0), group_size=4),
    trainer=Trainer(groups=2, step_s=0.5, ahead=32),
)
SHAPE = EngineShape(
    step_s=0.01, prefill_token_s=1e-5, running_s=1e-5, kv_token_s=1e-9, kv_tokens=400_000, max_running=64,
    chunk_tokens=8192,
)  # fmt: skip
FLEETS = st.builds(
    lambda engines, processes, concurrency, size, groups, extra, staleness, step: Fleet(
        engines=Engines(count=engines, turn_s=Amount(0.2, 0.6)),
        workers=Workers(processes=processes, concurrency=concurrency),
        jobs=Jobs(turns=Amount(3.0, 6.0), group_size=size),
        trainer=Trainer(groups=groups, step_s=step, update_s=0.1, ahead=groups + extra, max_staleness=staleness),
    ),
    *(st.integers(1, most) for most in (3, 3, 8, 4, 4)),
    st.integers(0, 8),
    st.none() | st.integers(0, 3),
    st.floats(0, 2),
)


@settings(max_examples=20, deadline=None)
@given(FLEETS, st.integers(0, 2**16))
def test_every_call_of_the_ledger_is_made_once_and_in_order(fleet: Fleet, seed: int):
    log: Log = []
    outcome = FleetRun(fleet, COSTS, seed, log).play(least=20)
    entered, claimed, turns, done, taken = set(), set(), {}, set(), set()
    for name, *rest in log:
        if name == "submit":
            entered.add(rest[0])
        elif name == "claim":
            assert rest[0] in entered and tuple(rest) not in claimed
            claimed.add(tuple(rest))
        elif name in ("append", "complete"):
            job, turn = tuple(rest[:2]), rest[2]
            assert job in claimed and job not in done and turn == turns.get(job, 0) + 1
            turns[job] = turn
            if name == "complete":
                done.add(job)
        elif name == "take":
            groups = {group for group, _ in rest[0]}
            assert len(groups) == fleet.trainer.groups and not groups & taken
            assert all((group, sample) in done for group in groups for sample in range(fleet.jobs.group_size))
            taken |= groups
    assert len(claimed) - len(done) <= fleet.slots
    assert 0 <= outcome.playing <= fleet.slots + 1e-9
    if (bound := fleet.trainer.max_staleness) is not None:
        assert max(outcome.staleness, default=0) <= bound


@settings(max_examples=15, deadline=None)
@given(FLEETS, st.integers(0, 2**16))
def test_shares_are_shares_and_a_seed_is_a_run(fleet: Fleet, seed: int):
    outcome = FleetRun(fleet, COSTS, seed).play(least=20)
    again = FleetRun(fleet, COSTS, seed).play(least=20)
    assert outcome == again
    for share in (outcome.engine_idle, outcome.updating, outcome.trainer_busy, outcome.redis_busy):
        assert 0 <= share <= 1 + 1e-9
    assert outcome.worker_busy <= 1.01
    assert sum(outcome.staleness.values()) == pytest.approx(1.0 if outcome.staleness else 0.0)


def test_littles_law():
    outcome = FleetRun(FLEET, COSTS).play(least=4000)
    before_the_claim = (COSTS.worker.message_s + COSTS.redis.claim_s) * outcome.rollouts_a_s
    assert outcome.playing == pytest.approx(outcome.rollouts_a_s * outcome.rollout_s + before_the_claim, rel=0.01)


def test_a_fleet_without_costs_is_as_fast_as_its_slots():
    fleet = replace(FLEET, trainer=Trainer(ahead=64))
    outcome = FleetRun(fleet, FREE).play(least=2000)
    a_rollout = outcome.turns_a_rollout * 1.0 + (outcome.turns_a_rollout + 1) * fleet.redis.round_trip_s
    assert outcome.rollouts_a_s == pytest.approx(fleet.slots / a_rollout, rel=0.03)
    assert limit_now(fleet, outcome).name == "slots"


def test_what_redis_does_is_the_sum_of_its_calls():
    # Turns are short enough that nothing is journaled before they end, and the trainer never has to wait.
    fleet = replace(FLEET, engines=Engines(turn_s=Amount(0.1)), jobs=replace(FLEET.jobs, turns=Amount(5.0)))
    outcome, redis = FleetRun(fleet, COSTS).play(least=2000), COSTS.redis
    tokens = 5 * (fleet.jobs.sampled_tokens.mean + fleet.jobs.observed_tokens.mean)
    a_rollout = redis.message_s + redis.claim_s + 4 * redis.append_s + redis.complete_s + redis.read_rollout_s
    a_rollout += redis.submit_job_s + (redis.submit_group_s + redis.take_group_s + redis.ack_group_s) / 4
    a_rollout += tokens * redis.token_bytes / 1000 * redis.append_kb_s + outcome.rollout_s / 5.0 * redis.renew_job_s
    assert outcome.redis_cpu_a_rollout_s == pytest.approx(a_rollout, rel=0.01)
    assert outcome.redis_busy == pytest.approx(a_rollout * outcome.rollouts_a_s, rel=0.01)


def test_a_slow_first_turn_is_one_call_more():
    calls = []
    for seconds in (0.1, 0.3):
        log: Log = []
        fleet = replace(FLEET, engines=Engines(turn_s=Amount(seconds)), jobs=replace(FLEET.jobs, turns=Amount(5.0)))
        FleetRun(fleet, COSTS, 0, log).play()
        names = [call[0] for call in log]
        calls.append((names.count("open"), names.count("claim")))
    (none, _), (opened, claimed) = calls
    assert none == 0 and claimed - FLEET.slots <= opened <= claimed


def test_redis_needs_its_share_when_idle():
    idle = replace(COSTS, redis=replace(COSTS.redis, idle=0.25))
    shares = [FleetRun(FLEET, costs).play().redis_busy for costs in (COSTS, idle)]
    assert shares[1] - shares[0] == pytest.approx(0.25)


def test_a_process_is_the_limit_when_engines_answer_at_once():
    fleet = replace(FLEET, engines=Engines(turn_s=Amount(0.0)), trainer=Trainer(ahead=64))
    outcome = FleetRun(fleet, COSTS).play(least=1000)
    assert outcome.worker_busy == pytest.approx(1.0, abs=0.02)
    assert limit_now(fleet, outcome).name in ("worker processes", "worker cores")


def test_processes_on_fewer_cores_are_slower():
    quick = replace(FLEET, engines=Engines(turn_s=Amount(0.0)), trainer=Trainer(ahead=64))
    one = replace(quick, workers=replace(quick.workers, cores=1))
    rates = [FleetRun(fleet, COSTS).play(least=1000).rollouts_a_s for fleet in (quick, one)]
    assert rates[0] == pytest.approx(2 * rates[1], rel=0.05)


def test_a_slow_trainer_is_the_limit_and_its_groups_get_old():
    slow = replace(FLEET, trainer=Trainer(groups=2, step_s=20.0, ahead=8))
    outcome = FleetRun(slow, COSTS).play()
    assert limit_now(slow, outcome).name == "trainer"
    bounded = replace(slow, trainer=replace(slow.trainer, max_staleness=1))
    assert max(FleetRun(bounded, COSTS).play().staleness) == 1 < max(outcome.staleness)


def test_engines_stand_still_while_they_load_weights():
    fleet = replace(FLEET, trainer=Trainer(groups=2, step_s=1.0, update_s=1.0, ahead=64))
    for shape in (None, SHAPE):
        loading = replace(fleet, engines=replace(fleet.engines, shape=shape))
        steady = replace(loading, trainer=replace(fleet.trainer, step_s=2.0, update_s=0.0))
        outcomes = [FleetRun(one, COSTS).play(least=500) for one in (steady, loading)]
        assert outcomes[0].updating == 0 < outcomes[1].updating
        assert outcomes[1].engine_turn_s > outcomes[0].engine_turn_s


def test_a_modelled_engine_is_the_limit_when_many_play():
    fleet = Fleet(
        engines=Engines(shape=SHAPE, policy_tokens=4000),
        workers=Workers(processes=2, concurrency=64),
        jobs=Jobs(turns=Amount(3.0), group_size=8),
        trainer=Trainer(ahead=64),
    )
    outcome = FleetRun(fleet, COSTS).play()
    assert limit_now(fleet, outcome).name == "engines"
    alone = replace(fleet, workers=Workers(processes=1, concurrency=1))
    assert FleetRun(alone, COSTS).play(least=20).engine_turn_s < outcome.engine_turn_s / 2


def test_recorded_episodes_are_played():
    episodes = (Episode(100, ((5, 7), (6, 0))), Episode(50, ((3, 0),)))
    log: Log = []
    FleetRun(replace(FLEET, jobs=Jobs(group_size=2, episodes=episodes)), COSTS, 0, log).play(least=50)
    played = {call[4:] for call in log if call[0] in ("append", "complete")}
    assert played == {(100, 5, 7), (100, 6, 0), (50, 3, 0)}


def test_an_episode_ends_with_its_budget_of_tokens():
    jobs = Jobs(turns=Amount(50.0), prompt_tokens=Amount(500.0), max_tokens=1000, group_size=2)
    log: Log = []
    FleetRun(replace(FLEET, jobs=jobs), COSTS, 0, log).play(least=20)
    assert {call[3] for call in log if call[0] == "complete"} == {2}  # 500 + 290 + 210 of 290


def test_the_first_limit_of_a_larger_fleet_is_what_that_fleet_meets():
    fleet = replace(FLEET, trainer=replace(FLEET.trainer, groups=1, step_s=0.0, ahead=64))
    outcome = FleetRun(fleet, COSTS).play(least=2000)
    [foreseen] = limits(outcome, [320])
    larger = fleet.scaled(320)
    met = FleetRun(larger, COSTS).play(least=2000)
    assert foreseen.name == "Redis"
    assert met.redis_busy * 320 / met.playing == pytest.approx(foreseen.load, rel=0.1)
