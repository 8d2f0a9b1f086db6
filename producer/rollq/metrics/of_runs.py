"""The metrics of `rollq metrics`: runs, their jobs and groups, the live workers, and Redis.

They are the fleet's snapshot, read when Prometheus asks. The totals are those that the ledger's
scripts count anyway, so a run costs a few calls for each scrape and nothing in between.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rollq.errors import FailureClass, LedgerError
from rollq.events import GRADED
from rollq.ledger.reader import LedgerReader
from rollq.ledger.workers.live_workers import AWAY
from rollq.ledger.workers.time_spent import WAITS
from rollq.metrics.metric import Metric, Sample, counter, gauge, spread
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.snapshot.fleet import FleetSnapshot, read_fleet
from rollq.snapshot.run import PLACES, RunSnapshot

log = logging.getLogger("rollq")

MOST_DEAD = 5000
"""Number of dead jobs whose class is looked up, the latest ones."""
LOOKED_AT = 100
"""Number of the oldest groups of a state; the stalest is looked for among them."""
EARLIER = "earlier"
"""Label of the dead jobs before the latest MOST_DEAD, in place of their class."""

FLEET: dict[str, Metric] = {
    "up": gauge("rollq_ledger_up", "1 when Redis answered, else 0, and nothing below is there."),
    "unreadable": gauge(
        "rollq_runs_unreadable", "Number of runs whose ledger cannot be read (see `rollq stats`)."
    ),
    "memory": gauge("rollq_redis_memory_bytes", "Bytes of memory that Redis uses."),
    "memory_limit": gauge("rollq_redis_memory_limit_bytes", "Redis's maxmemory in bytes; 0: none."),
    "workers": gauge("rollq_live_workers", "Number of worker processes that live."),
    "slots": gauge("rollq_live_slots", "Episodes that the live workers can play at once."),
    "in_flight": gauge("rollq_live_in_flight", "Episodes that the live workers are playing."),
    "without_engine": gauge(
        "rollq_live_workers_without_engine", "Number of live workers whose engines are all away."
    ),
}
"""Metrics of Redis and of the workers."""
RUN: dict[str, Metric] = {
    "queued": gauge("rollq_jobs_queued", "Jobs that wait for a worker, or for a retry.", "run"),
    "leased": gauge("rollq_jobs_leased", "Jobs that are being played.", "run"),
    "dead": gauge(
        "rollq_jobs_dead", "Dead jobs by the class of the failure that killed them.", "run", "class"
    ),
    "groups": gauge(
        "rollq_groups", "Groups that are open, ready for a trainer, or held by one.", "run", "state"
    ),
    "oldest": gauge(
        "rollq_group_wait_seconds",
        "Seconds since the oldest group in that state was submitted; of those that are ready "
        "or held, for training.",
        "run",
        "state",
    ),
    "step": gauge(
        "rollq_policy_step", "Training step of the policy that was published last.", "run"
    ),
    "staleness": gauge(
        "rollq_staleness_steps",
        "Steps that the policy has gone on since the stalest of the oldest 100 groups for "
        "training in that state began.",
        "run",
        "state",
    ),
    "reward": gauge(
        "rollq_reward_mean", "Mean reward of all graded rollouts since the run began.", "run"
    ),
    "lag": gauge(
        "rollq_reaper_lag_seconds",
        "Seconds since a worker last looked for lost and due jobs; 0 without jobs.",
        "run",
    ),
    "rollouts": counter("rollq_rollouts", "Graded rollouts by why they ended.", "run", "stop"),
    "failures": counter(
        "rollq_failures", "Failed attempts by class, retried or not.", "run", "class"
    ),
    "seconds": counter(
        "rollq_episode_seconds",
        "Seconds of episodes by what they waited for.",
        "run",
        "waiting_for",
    ),
}
"""Metrics of each run."""
TOTALS: dict[str, Metric] = {
    "submitted": counter("rollq_jobs_submitted", "Jobs that were submitted.", "run"),
    "done": counter("rollq_jobs_done", "Jobs that ended with a grade.", "run"),
    "surplus": counter("rollq_jobs_surplus", "Jobs whose group had enough graded members.", "run"),
    "claims": counter("rollq_attempts", "Attempts that began.", "run"),
    "resumed": counter(
        "rollq_attempts_resumed", "Attempts that went on with the journal of an earlier one.", "run"
    ),
    "released": counter(
        "rollq_attempts_released", "Attempts that a stopping worker gave back at no cost.", "run"
    ),
    "expired": counter(
        "rollq_leases_expired", "Leases that expired, because a worker died or hung.", "run"
    ),
    "fenced": counter(
        "rollq_fenced", "Writes that were refused, because their attempt had lost its lease.", "run"
    ),
    "delivered": counter("rollq_jobs_delivered", "Graded jobs that a trainer acknowledged.", "run"),
    "redelivered": counter(
        "rollq_redelivered",
        "Groups handed out again, because their hold ran out or was taken over.",
        "run",
    ),
    "groups_acked": counter("rollq_groups_acked", "Groups that were acknowledged.", "run"),
    "groups_skipped": counter(
        "rollq_groups_skipped", "Groups that a trainer's filter left out.", "run"
    ),
    "groups_dropped": gauge(
        "rollq_groups_dropped", "Groups that lost too many members, and were not requeued.", "run"
    ),
    "turns": counter("rollq_turns", "Turns of graded rollouts.", "run"),
    "sampled_tokens": counter("rollq_sampled_tokens", "Sampled tokens of graded rollouts.", "run"),
}
"""Metrics of a run's totals, by their names in `LedgerReader.stats`."""

LEDGER_METRICS = (*FLEET.values(), *RUN.values(), *TOTALS.values())
"""All of them."""


class RunMetrics:
    """The metrics of the runs that matter most."""

    def __init__(self, connection: Any) -> None:
        self._redis = connection
        self._dead: dict[str, dict[bytes, tuple[float, str]]] = {}
        """Dead jobs that were looked up, by run: the time at which each died, and its class."""

    def read(self) -> list[Sample]:
        """The current metrics. Without Redis, only that it is away."""
        try:
            fleet = read_fleet(self._redis, None, LOOKED_AT)
            self._dead = {run.run: self._dead.get(run.run, {}) for run in fleet.runs}
            return [Sample(FLEET["up"], (), 1), *_fleet(fleet), *self._runs(fleet)]
        except (LedgerError, *CONNECTION_ERRORS) as e:
            log.warning("metrics: %s: %s", type(e).__name__, e)
            return [Sample(FLEET["up"], (), 0)]

    def _runs(self, fleet: FleetSnapshot) -> Iterator[Sample]:
        unreadable = list(fleet.unreadable)
        for run in fleet.runs:
            try:
                dead = self._dead_by_class(LedgerReader(self._redis, run.run))
            except LedgerError as e:
                unreadable.append(str(e))
            else:
                yield from _of_run(run)
                yield from spread(RUN["dead"], dead, FailureClass, (run.run,))
        for why in unreadable:
            log.warning("metrics: %s", why)
        yield Sample(FLEET["unreadable"], (), len(unreadable))

    def _dead_by_class(self, reader: LedgerReader) -> dict[str, float]:
        """Each dead job is looked up once, because its class does not change."""
        key = reader.keys.dead
        before = self._dead.get(reader.run, {})
        pipe = self._redis.pipeline(transaction=False)
        pipe.zcard(key)
        pipe.zrevrange(key, 0, MOST_DEAD - 1, withscores=True)
        count, rows = reader.scripts.guard(key, pipe.execute)
        dead = {}
        new = []
        for job, died in rows:
            if job in before and before[job][0] == died:
                dead[job] = before[job]
            else:
                new.append((job, died))
                pipe.hget(reader.keys.job(job.decode("utf-8", "replace")), "class")
        for (job, died), failure in zip(new, pipe.execute(raise_on_error=False), strict=True):
            dead[job] = (died, _class(failure))
        self._dead[reader.run] = dead
        by_class = Counter(failure for _, failure in dead.values())
        return {**by_class, EARLIER: max(0, count - len(dead))}


def _fleet(fleet: FleetSnapshot) -> Iterator[Sample]:
    yield Sample(FLEET["workers"], (), len(fleet.workers))
    yield Sample(FLEET["slots"], (), fleet.slots)
    yield Sample(FLEET["in_flight"], (), fleet.in_flight)
    yield Sample(
        FLEET["without_engine"], (), sum(worker.engine == AWAY for worker in fleet.workers)
    )
    if fleet.server.used is not None:
        yield Sample(FLEET["memory"], (), fleet.server.used)
        yield Sample(FLEET["memory_limit"], (), fleet.server.limit or 0)


def _of_run(snapshot: RunSnapshot) -> Iterator[Sample]:
    run = (snapshot.run,)
    counts = snapshot.counts
    # A job that a consumer rejects is done no more, and a counter must not fall.
    rejected = counts["rejected"]
    stops = {
        stop.value: counts["stops"].get(stop, 0) + rejected.get(f"stop:{stop}", 0)
        for stop in GRADED
    }
    yield Sample(RUN["queued"], run, counts["queued"])
    yield Sample(RUN["leased"], run, counts["leased"])
    yield Sample(RUN["lag"], run, snapshot.reaper_lag_s)
    for name, metric in TOTALS.items():
        yield Sample(metric, run, counts[name] + rejected.get(name, 0))
    yield from spread(
        RUN["groups"], {place: counts[f"groups_{place}"] for place in PLACES}, before=run
    )
    yield from spread(RUN["rollouts"], stops, before=run)
    yield from spread(RUN["failures"], counts["failures"], FailureClass, run)
    yield from spread(RUN["seconds"], snapshot.seconds, WAITS, run)
    yield from spread(
        RUN["oldest"],
        {place: snapshot.age_s(place, trains=place != "open") for place in PLACES},
        before=run,
    )
    if snapshot.step is not None:
        yield Sample(RUN["step"], run, snapshot.step)
        yield from spread(
            RUN["staleness"],
            {place: max(0, snapshot.staleness(place) or 0) for place in PLACES},
            before=run,
        )
    if counts["reward_mean"] is not None:
        yield Sample(RUN["reward"], run, counts["reward_mean"])


def _class(failure: object) -> str:
    """The class in a job's record; that of the job for a record that cannot be read, as in
    `LedgerReader.dead`.
    """
    text = failure.decode("utf-8", "replace") if isinstance(failure, bytes) else ""
    return text if text in set(FailureClass) else FailureClass.JOB
