"""What Flower shows of a rollout: which state, and which words."""

from typing import Any

import pytest

from rollq.errors import EnvironmentFailure
from rollq.ledger.ledger import Ledger
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.monitoring.task_events import LONGEST_WHY, TaskEvents, outcome
from tests.rollq_worker.process.ledgers import submit

WHY = {"stop": "failed", "why": "engine: HTTP 500\nTraceback (most recent call last)"}


@pytest.mark.parametrize(
    ("summary", "kind", "text"),
    [
        (
            {"stop": "done", "reward": 1.0, "turns": 9, "tokens": 1834},
            "succeeded",
            "reward 1.0, done, 9 turns, 1,834 tokens",
        ),
        (
            {"stop": "turns", "reward": 1 / 3, "turns": 1, "tokens": 5},
            "succeeded",
            "reward 0.3333, turns, 1 turn, 5 tokens",
        ),
        (WHY | {"then": "queued"}, "retried", "engine: HTTP 500"),
        (WHY | {"then": "dead"}, "failed", "engine: HTTP 500"),
        (WHY | {"then": "surplus"}, "failed", "engine: HTTP 500"),
        (
            {"stop": "abandoned", "why": "env: nothing in 60 s"},
            "failed",
            "abandoned, env: nothing in 60 s",
        ),
        ({"stop": "released"}, "retried", "released, another worker goes on with it"),
        ({"stop": "fenced"}, "fenced", "its lease was lost"),
        ({"stop": "bounced"}, "refused", "bounced"),
        ({"stop": "refused: leased"}, "refused", "refused: leased"),
        ({"stop": "ignored"}, "refused", "ignored"),
    ],
)
def test_a_rollout_is_told_in_one_line(summary: dict[str, Any], kind: str, text: str) -> None:
    assert outcome(summary) == (f"task-{kind}", text)


def test_a_long_reason_is_cut() -> None:
    _, text = outcome({"stop": "failed", "then": "dead", "why": "x" * 10_000})
    assert text == "x" * LONGEST_WHY


def test_what_a_real_attempt_says(
    runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def play() -> None:
        events = TaskEvents(lambda kind, **fields: told.append((kind, fields)))
        told.append(events.ended(runner.run(job_id, events.began)))

    job_id = submit(ledger, task=3)
    with monkeypatch.context() as patch:

        def fail(*args: Any, **options: Any) -> None:
            raise EnvironmentFailure("no such shelf")

        patch.setattr("rollq_worker.episode.loop.play", fail)
        play()
    ledger.redis.hdel(ledger.keys.job(job_id), "not_before")  # its backoff
    play()
    play()
    kinds = [kind for kind, _ in told]
    assert kinds == [
        "task-started",
        "task-retried",
        "task-started",
        "task-succeeded",
        "task-refused",
    ]
    assert [told[n][1]["args"] for n in (0, 2)] == [
        f"shop train/3, r/g/0, attempt {n}" for n in (1, 2)
    ]
    assert told[1][1]["exception"] == "env: no such shelf"
    assert told[3][1]["result"].startswith("reward 1.0, done, ") and told[3][1]["runtime"] > 0
    assert told[4][1]["result"] == "refused: done"
