"""Events of Celery's task for Flower: the rollout, and its end in words.

For Celery a task has succeeded when its function has returned. Here a task succeeds when its
rollout is graded, fails when its job is dead, and is retried when its job is queued again. It
decides nothing about a job.
"""

import time
from collections.abc import Callable
from typing import Any

from rollq.ledger.replies import State
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.job_task import Summary

STARTED, SUCCEEDED, FAILED = "task-started", "task-succeeded", "task-failed"
RETRIED = "task-retried"
REFUSED = "task-refused"
"""The job could not be claimed. Celery knows no such event, so that Flower shows it in grey, as
REFUSED.
"""
FENCED = "task-fenced"
"""The attempt lost its lease to another."""
LONGEST_WHY = 200
"""Number of characters of a failure's reason that are shown; `rollq show JOB` has all of it."""


class TaskEvents:
    """The events of one message."""

    def __init__(self, send: Callable[..., object]) -> None:
        """`send` takes an event's type and its fields. It may be called from all threads."""
        self._send = send
        self._began_at: float | None = None

    def began(self, attempt: Attempt) -> None:
        """The job is claimed."""
        self._began_at = time.monotonic()
        job = attempt.job
        self._send(
            STARTED, args=f"{job.env} {job.split}/{job.task}, {job.id}, attempt {attempt.number}"
        )

    def ended(self, summary: Summary) -> tuple[str, dict[str, Any]]:
        """The event that tells how the message's job ended, and its fields."""
        kind, text = outcome(summary)
        fields: dict[str, Any] = {"result": text}
        if kind in (FAILED, RETRIED):
            fields["exception"] = text
        if self._began_at is not None:
            fields["runtime"] = time.monotonic() - self._began_at
        return kind, fields


def outcome(summary: Summary) -> tuple[str, str]:
    """The event's type and its text."""
    stop = summary["stop"]
    if "reward" in summary:
        turns = "1 turn" if summary["turns"] == 1 else f"{summary['turns']} turns"
        return (
            SUCCEEDED,
            f"reward {round(summary['reward'], 4)}, {stop}, {turns}, {summary['tokens']:,} tokens",
        )
    why = summary.get("why", "").split("\n", 1)[0][:LONGEST_WHY]
    if stop == "failed":
        return RETRIED if summary["then"] == State.QUEUED else FAILED, why
    if stop == "abandoned":
        return FAILED, f"abandoned, {why}"
    if stop == "released":
        return RETRIED, "released, another worker goes on with it"
    if stop == "fenced":
        return (FENCED, "its lease was lost")
    return (REFUSED, stop)
