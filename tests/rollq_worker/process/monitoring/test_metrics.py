"""What a worker's metrics say of the attempts that it played."""

from typing import Any

from rollq.errors import EngineFailure
from rollq.events import Sampled
from rollq.ledger.ledger import Ledger
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.monitoring.metrics import WORKER_METRICS, worker_metrics
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import submit


def values(runner: JobRunner) -> dict[tuple[str, ...], float]:
    samples = worker_metrics(runner)
    found = {
        (sample.metric.name.removeprefix("rollq_worker_"), *sample.labels): sample.value
        for sample in samples
    }
    assert len(found) == len(samples)
    assert {sample.metric for sample in samples} == set(WORKER_METRICS)
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in samples)
    return found


def test_before_the_first_job_all_totals_are_there(runner: JobRunner) -> None:
    found = values(runner)
    assert found["slots",] == 4 and found["engine_available",] == 1
    assert not any(
        value
        for key, value in found.items()
        if key[0].endswith("_total") and "outage" not in key[0]
    )


def test_a_graded_rollout(runner: JobRunner, ledger: Ledger) -> None:
    job_id = submit(ledger)
    runner.run(job_id)
    trajectory, found = reader(ledger).trajectory(job_id), values(runner)
    pieces = [event for event in trajectory.events if isinstance(event, Sampled)]
    assert found["rollouts_total", "done"] == 1
    assert found["turns_total",] == trajectory.turns
    assert found["sampled_tokens_total",] == trajectory.sampled_tokens
    assert found["cached_tokens_total",] == sum(piece.cached_tokens for piece in pieces)
    assert found["requests_total", "stop"] == len(pieces)
    assert found["prompt_tokens_total",] >= found["cached_tokens_total",] > 0
    entries = ledger.redis.lrange(ledger.keys.journal(job_id), 0, -1)
    assert 0 < sum(map(len, entries)) <= found["journal_bytes_total",]
    assert found["in_flight",] == 0


def test_a_rollout_under_way_is_counted_turn_by_turn(runner: JobRunner, ledger: Ledger) -> None:
    seen: list[tuple[float, float, float]] = []
    [engine] = runner.engine.engines
    sample = engine.sample

    def watched(call: Any) -> Any:
        runner.time_spent.count(1.0, 0.0)
        found = values(runner)
        seen.append(
            (found["turns_total",], found["in_flight",], found["episode_seconds_total", "engine"])
        )
        return sample(call)

    engine.sample = watched  # type: ignore[method-assign]
    runner.run(submit(ledger))
    assert seen == [(turn, 1, turn + 1.0) for turn in range(len(seen))] and len(seen) > 2
    assert values(runner)["turns_total",] == len(seen)


def test_failed_and_unfinished_attempts(runner: JobRunner, ledger: Ledger) -> None:
    for n in range(2):
        runner.run(submit(ledger, agent="telepathy", group=f"g{n}"))
        runner.run(f"r/g{n}/0")  # the second failure of its class kills the job
    job_id = submit(ledger, group="lost")
    sample = runner.engine.generate

    def expire(*args: Any, **options: Any) -> Any:
        ledger.redis.delete(ledger.keys.leased)
        return sample(*args, **options)

    runner.engine.generate = expire  # type: ignore[method-assign]
    assert runner.run(job_id)["stop"] == "fenced"

    def fail(*args: Any, **options: Any) -> Any:
        raise EngineFailure("away")

    runner.engine.generate = fail  # type: ignore[method-assign]
    runner.run(submit(ledger, group="away"))
    found = values(runner)
    assert (
        found["failed_attempts_total", "job", "queued"],
        found["failed_attempts_total", "job", "dead"],
    ) == (2, 2)
    assert found["failed_attempts_total", "engine", "queued"] == 1
    assert found["unfinished_attempts_total", "fenced"] == 1
    assert not any(value for key, value in found.items() if key[0] == "rollouts_total")


def test_a_message_that_leads_to_no_attempt_is_none(runner: JobRunner) -> None:
    runner.run("r/unknown/0")
    found = values(runner)
    assert not any(value for key, value in found.items() if key[0].endswith("attempts_total"))
