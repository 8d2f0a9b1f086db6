"""What `rollq metrics` reads of the ledger: runs, groups, dead jobs, the fleet."""

from collections.abc import Mapping

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import RUNS, Keys
from rollq.ledger.ledger import Ledger
from rollq.ledger.versions import Versions
from rollq.ledger.workers.live_workers import AWAY, READY
from rollq.metrics import of_runs
from rollq.metrics.metric import Kind, Sample, counter, gauge, spread
from rollq.metrics.of_runs import LEDGER_METRICS, RunMetrics
from rollq.servers.connection import connect
from tests.rollq.client.fleets import live
from tests.rollq.groups import deliveries, finish_groups, take
from tests.rollq.samples import claim, group, reader

Values = Mapping[tuple[str, ...], float]


def values(metrics: RunMetrics) -> Values:
    """By the metric's name and its labels."""
    samples = metrics.read()
    found = {(sample.metric.name, *sample.labels): sample.value for sample in samples}
    assert len(found) == len(samples)
    assert all(sample.metric in LEDGER_METRICS for sample in samples)
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in samples)
    return found


def submit(ledger: Ledger, name: str, size: int = 1) -> list[str]:
    return list(ledger.submit(group(name, size)).new)


def test_a_run_without_work_and_one_with_it(ledger: Ledger) -> None:
    metrics = RunMetrics(ledger.redis)
    assert values(metrics)["rollq_ledger_up",] == 1
    assert not any(len(key) > 1 for key in values(metrics))
    submit(ledger, "g", 3)
    found = values(metrics)
    assert found["rollq_jobs_queued", "r"] == found["rollq_jobs_submitted_total", "r"] == 3
    assert (found["rollq_groups", "r", "open"], found["rollq_groups", "r", "ready"]) == (1, 0)
    assert (
        found["rollq_group_wait_seconds", "r", "open"]
        >= 0
        == found["rollq_group_wait_seconds", "r", "held"]
    )
    assert ("rollq_reward_mean", "r") not in found and ("rollq_policy_step", "r") not in found
    assert {key[2] for key in found if key[0] == "rollq_failures_total"} == set(FailureClass)
    ledger.seal()


def test_dead_jobs_by_class_are_looked_up_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.pin_budgets({FailureClass.ENV: 1, FailureClass.JOB: 1})
    ids = submit(ledger, "g", 3)
    metrics = RunMetrics(ledger.redis)
    for job_id, failure in zip(
        ids, (FailureClass.JOB, FailureClass.ENV, FailureClass.ENV), strict=True
    ):
        ledger.fail(job_id, claim(ledger, job_id).lease, failure, "why")
    found = values(metrics)
    assert (found["rollq_jobs_dead", "r", "env"], found["rollq_jobs_dead", "r", "job"]) == (2, 1)
    assert found["rollq_failures_total", "r", "env"] == 2
    ledger.redis.hset(Keys("r").job(ids[0]), "class", "engine")  # a second look would show this
    assert values(metrics)["rollq_jobs_dead", "r", "job"] == 1
    monkeypatch.setattr(of_runs, "MOST_DEAD", 1)
    assert values(RunMetrics(ledger.redis))["rollq_jobs_dead", "r", "earlier"] == 2


def test_a_requeued_job_that_dies_again_is_looked_up_again(ledger: Ledger) -> None:
    ledger.pin_budgets({FailureClass.ENV: 1, FailureClass.JOB: 1})
    (job_id,) = submit(ledger, "g")
    metrics = RunMetrics(ledger.redis)
    ledger.fail(job_id, claim(ledger, job_id).lease, FailureClass.ENV, "why")
    assert values(metrics)["rollq_jobs_dead", "r", "env"] == 1
    DeadLetters(ledger.redis, "r").requeue(job_id)
    assert values(metrics)["rollq_jobs_dead", "r", "env"] == 0
    ledger.fail(job_id, claim(ledger, job_id).lease, FailureClass.JOB, "why")
    assert (
        values(metrics)["rollq_jobs_dead", "r", "env"],
        values(metrics)["rollq_jobs_dead", "r", "job"],
    ) == (0, 1)


def test_staleness_is_that_of_the_stalest_group(ledger: Ledger) -> None:
    versions = Versions(ledger.redis, "r")
    versions.publish(3, "v3", "a")
    for name in ("first", "second"):
        claim(ledger, submit(ledger, name)[0])
        versions.publish(5, "v5", "b")
    versions.publish(9, "v9", "c")
    found = values(RunMetrics(ledger.redis))
    assert found["rollq_policy_step", "r"] == 9
    assert (
        found["rollq_staleness_steps", "r", "open"],
        found["rollq_staleness_steps", "r", "ready"],
    ) == (6, 0)


def test_evaluations_wait_for_no_trainer(ledger: Ledger) -> None:
    for purpose in Purpose:
        finish_groups(ledger, purpose.value, purpose=purpose)
        ledger.redis.hset(ledger.keys.group(purpose.value), "at", ledger.scripts.now() - 1000)
    ledger.redis.hset(ledger.keys.group("eval"), "at", ledger.scripts.now() - 9000)
    Versions(ledger.redis, "r").publish(3, "v3", "a")
    ledger.redis.hset(ledger.keys.group("eval"), "started", 0)
    found = values(RunMetrics(ledger.redis))
    assert 1000 <= found["rollq_group_wait_seconds", "r", "ready"] < 2000
    assert found["rollq_staleness_steps", "r", "ready"] == 0


def test_no_counter_falls_when_a_consumer_cannot_read_a_done_job(ledger: Ledger) -> None:
    """Prometheus takes a counter that falls for a process that started again."""
    metrics, counters = (
        RunMetrics(ledger.redis),
        {m.name for m in LEDGER_METRICS if m.kind is Kind.COUNTER},
    )
    finish_groups(ledger, "g", min_viable=1)
    before = values(metrics)
    take(ledger, 1, "t")
    deliveries(ledger).reject("t", "r/g/0", "torn")
    after = values(metrics)
    assert {
        key: after[key] for key in before if key[0] in counters and after[key] < before[key]
    } == {}
    assert (after["rollq_jobs_done_total", "r"], after["rollq_rollouts_total", "r", "done"]) == (
        2,
        2,
    )
    stats = reader(ledger).stats()
    assert (stats["done"], stats["stops"]) == (1, {"done": 1})
    assert (stats["rejected"]["done"], stats["rejected"]["stop:done"]) == (
        1,
        1,
    ) and "reward_sum" not in stats["rejected"]


def test_the_fleet(ledger: Ledger) -> None:
    for name, engine, busy in (("a", READY, 3), ("b", AWAY, 0)):
        live(ledger, name, engine=engine, slots=8, busy=busy)
    found = values(RunMetrics(ledger.redis))
    fleet = (
        "rollq_live_workers",
        "rollq_live_slots",
        "rollq_live_in_flight",
        "rollq_live_workers_without_engine",
    )
    assert [found[name,] for name in fleet] == [2, 16, 3, 1]
    assert found["rollq_redis_memory_bytes",] > 0


def test_a_run_that_cannot_be_read_hides_no_other(ledger: Ledger) -> None:
    submit(ledger, "g")
    ledger.redis.zadd(RUNS, {"bad": 1})
    ledger.redis.set(Keys("bad").count, "no hash")
    found = values(RunMetrics(ledger.redis))
    assert (found["rollq_runs_unreadable",], found["rollq_jobs_queued", "r"]) == (1, 1)
    assert ("rollq_jobs_queued", "bad") not in found


def test_without_redis_there_is_only_that(redis_url: str) -> None:
    client: redis.Redis = connect("redis://127.0.0.1:1/0", patience_s=0)
    assert values(RunMetrics(client)) == {("rollq_ledger_up",): 0}
    client.close()


@given(st.dictionaries(st.text(max_size=5), st.floats(0, 1e9)), st.lists(st.text(max_size=5)))
def test_what_is_known_is_there_from_the_start(found: dict[str, float], known: list[str]) -> None:
    metric = gauge("m", "It.", "run", "what")
    samples = spread(metric, found, known, ("r",))
    assert {sample.labels for sample in samples} == {("r", name) for name in {*found, *known}}
    assert all(
        sample == Sample(metric, sample.labels, found.get(sample.labels[1], 0.0))
        for sample in samples
    )
    assert counter("n", "It.").name == "n_total" and counter("n", "It.").kind is Kind.COUNTER
