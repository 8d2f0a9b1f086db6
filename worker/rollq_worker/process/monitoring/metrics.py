"""The metrics of one worker process, for `rollq worker --metrics`.

They are read from counts of the worker when Prometheus asks. All totals begin at 0 with the
process.
"""

from collections import Counter
from collections.abc import Mapping

from rollq.errors import FailureClass
from rollq.events import GRADED, Finish
from rollq.ledger.replies import State
from rollq.ledger.workers.time_spent import WAITS
from rollq.metrics.metric import Sample, counter, gauge, spread
from rollq_worker.process.job_task import JobRunner

UNFINISHED = ("fenced", "abandoned", "released")
"""Reasons why an attempt ends here without a grade and without a failure of its own."""

IN_FLIGHT = gauge("rollq_worker_in_flight", "Episodes that are being played.")
SLOTS = gauge("rollq_worker_slots", "Episodes that can be played at once.")
SLOTS_LOST = gauge(
    "rollq_worker_slots_lost", "Slots lost to code of environments or users that does not end."
)
ENGINE_AVAILABLE = gauge(
    "rollq_worker_engine_available", "1 when an engine takes requests, else 0."
)
OUTAGE = counter("rollq_worker_engine_outage_seconds", "Seconds in which no engine was there.")
ROLLOUTS = counter("rollq_worker_rollouts", "Graded rollouts by why they ended.", "stop")
FAILED = counter(
    "rollq_worker_failed_attempts",
    "Failed attempts by class; then the job is queued again or dead.",
    "class",
    "then",
)
UNFINISHED_ATTEMPTS = counter(
    "rollq_worker_unfinished_attempts",
    "Attempts that ended otherwise: they lost their lease (fenced), their thread did not come "
    "back in time (abandoned), or they were given back at no cost (released).",
    "why",
)
TURNS = counter("rollq_worker_turns", "Turns that were sampled and acted on.")
REQUESTS = counter(
    "rollq_worker_requests", "Replies of engines by how the generation ended.", "finish"
)
SAMPLED = counter("rollq_worker_sampled_tokens", "Tokens that engines sampled for this worker.")
PROMPT = counter("rollq_worker_prompt_tokens", "Tokens that were sent to engines as prompts.")
CACHED = counter(
    "rollq_worker_cached_tokens", "Prompt tokens that engines had in their prefix cache."
)
JOURNAL = counter("rollq_worker_journal_bytes", "Bytes of journals that were written to Redis.")
SECONDS = counter(
    "rollq_worker_episode_seconds", "Seconds of episodes by what they waited for.", "waiting_for"
)

WORKER_METRICS = (
    *(
        IN_FLIGHT,
        SLOTS,
        SLOTS_LOST,
        ENGINE_AVAILABLE,
        OUTAGE,
        ROLLOUTS,
        FAILED,
        UNFINISHED_ATTEMPTS,
    ),
    *(TURNS, REQUESTS, SAMPLED, PROMPT, CACHED, JOURNAL, SECONDS),
)
"""All of them."""


def worker_metrics(runner: JobRunner) -> list[Sample]:
    """Present samples of a worker."""
    leases = runner.leases
    replies = runner.engine.traffic.replies()
    played = leases.played()
    return [
        Sample(IN_FLIGHT, (), len(leases.held())),
        Sample(SLOTS, (), runner.settings.concurrency),
        Sample(SLOTS_LOST, (), len(leases.lost_threads())),
        Sample(ENGINE_AVAILABLE, (), float(runner.engine.available)),
        Sample(OUTAGE, (), runner.engine.outage_s),
        *_attempts(Counter(runner.attempt_counts)),
        Sample(TURNS, (), played.turns),
        *spread(REQUESTS, replies.by_finish, Finish),
        Sample(SAMPLED, (), replies.sampled_tokens),
        Sample(PROMPT, (), replies.prompt_tokens),
        Sample(CACHED, (), replies.cached_tokens),
        Sample(JOURNAL, (), played.written_bytes),
        *spread(SECONDS, _seconds(runner)),
    ]


def _attempts(ended: Mapping[tuple[str, str, str], int]) -> list[Sample]:
    """`ended`: see JobRunner."""
    return [
        *spread(ROLLOUTS, {stop: ended[stop, "", ""] for stop in GRADED}),
        *(
            Sample(FAILED, (failure, then), ended["failed", failure, then])
            for failure in FailureClass
            for then in (State.QUEUED, State.DEAD)
        ),
        *spread(UNFINISHED_ATTEMPTS, {why: ended[why, "", ""] for why in UNFINISHED}),
    ]


def _seconds(runner: JobRunner) -> Mapping[str, float]:
    """Seconds of all runs by the thing that is waited for."""
    of_runs = list(runner.time_spent.seconds.values())
    return {wait: sum(seconds[wait] for seconds in of_runs) for wait in WAITS}
