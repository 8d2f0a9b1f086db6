"""The metrics of `rollq metrics`: runs, their jobs and groups, the live workers, and Redis.

They are read from the ledger when Prometheus asks. The totals are those that the ledger's scripts count anyway, so a
run costs a few calls for each scrape and nothing in between.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from rollq.errors import FailureClass, LedgerError
from rollq.events import GRADED
from rollq.job import Purpose
from rollq.ledger.reader import LedgerReader, runs
from rollq.ledger.stored import number, text
from rollq.ledger.workers.live_workers import AWAY, live_workers
from rollq.ledger.workers.reaping import ActiveRuns
from rollq.ledger.workers.time_spent import WAITS, time_spent
from rollq.metrics.metric import Metric, Sample, counter, gauge, spread
from rollq.servers.connection import CONNECTION_ERRORS

log = logging.getLogger("rollq")

MOST_RUNS = 20
"""Number of runs that are shown: those with work, then the newest. More would be too many labels."""
MOST_DEAD = 5000
"""Number of dead jobs whose class is looked up, the latest ones."""
LOOKED_AT = 100
"""Number of groups, the oldest of a state, of which the stalest is looked for."""
EARLIER = "earlier"
"""In place of the class of dead jobs before those MOST_DEAD."""
PLACES = ("open", "ready", "held")

UP = gauge("rollq_ledger_up", "1 when Redis answered, else 0, and nothing below is there.")
UNREADABLE = gauge("rollq_runs_unreadable", "Number of runs whose ledger cannot be read (see `rollq stats`).")
MEMORY = gauge("rollq_redis_memory_bytes", "Bytes of memory that Redis uses. Not of a cluster.")
MEMORY_LIMIT = gauge("rollq_redis_memory_limit_bytes", "Redis's maxmemory in bytes; 0: none. Not of a cluster.")
WORKERS = gauge("rollq_live_workers", "Number of worker processes that live.")
SLOTS = gauge("rollq_live_slots", "Episodes that the live workers can play at once.")
IN_FLIGHT = gauge("rollq_live_in_flight", "Episodes that the live workers are playing.")
WITHOUT_ENGINE = gauge("rollq_live_workers_without_engine", "Number of live workers whose engines are all away.")

QUEUED = gauge("rollq_jobs_queued", "Jobs that wait for a worker, or for a retry.", "run")
LEASED = gauge("rollq_jobs_leased", "Jobs that are being played.", "run")
DEAD = gauge("rollq_jobs_dead", "Dead jobs by the class of the failure that killed them.", "run", "class")
GROUPS = gauge("rollq_groups", "Groups that are open, ready for a trainer, or held by one.", "run", "state")
OLDEST = gauge(
    "rollq_group_wait_seconds", "Seconds since the oldest group in that state was submitted.", "run", "state"
)
STEP = gauge("rollq_policy_step", "Training step of the policy that was published last.", "run")
STALENESS = gauge(
    "rollq_staleness_steps",
    "Steps that the policy has gone on since the stalest of the oldest 100 groups in that state began.",
    "run",
    "state",
)
REWARD = gauge("rollq_reward_mean", "Mean reward of all graded rollouts since the run began.", "run")
LAG = gauge(
    "rollq_reaper_lag_seconds", "Seconds since a worker last looked for lost and due jobs; 0 without jobs.", "run"
)
ROLLOUTS = counter("rollq_rollouts", "Graded rollouts by why they ended.", "run", "stop")
FAILURES = counter("rollq_failures", "Failed attempts by class, retried or not.", "run", "class")
SECONDS = counter("rollq_episode_seconds", "Seconds of episodes by what they waited for.", "run", "waiting_for")
TOTALS: dict[str, Metric] = {
    "submitted": counter("rollq_jobs_submitted", "Jobs that were submitted.", "run"),
    "done": counter("rollq_jobs_done", "Jobs that ended with a grade.", "run"),
    "surplus": counter("rollq_jobs_surplus", "Jobs whose group had enough graded members.", "run"),
    "claims": counter("rollq_attempts", "Attempts that began.", "run"),
    "resumed": counter("rollq_attempts_resumed", "Attempts that went on with the journal of an earlier one.", "run"),
    "released": counter("rollq_attempts_released", "Attempts that a stopping worker gave back at no cost.", "run"),
    "expired": counter("rollq_leases_expired", "Leases that expired, because a worker died or hung.", "run"),
    "fenced": counter("rollq_fenced", "Writes that were refused, because their attempt had lost its lease.", "run"),
    "delivered": counter("rollq_jobs_delivered", "Graded jobs that a trainer acknowledged.", "run"),
    "duplicates": counter("rollq_duplicates", "Graded jobs that were acknowledged under two holds.", "run"),
    "redelivered": counter(
        "rollq_redelivered", "Groups handed out again, because their hold ran out or was taken over.", "run"
    ),
    "groups_acked": counter("rollq_groups_acked", "Groups that were acknowledged.", "run"),
    "groups_skipped": counter("rollq_groups_skipped", "Groups that a trainer's filter left out.", "run"),
    "groups_dropped": counter("rollq_groups_dropped", "Groups that lost too many members to be of use.", "run"),
    "turns": counter("rollq_turns", "Turns of graded rollouts.", "run"),
    "sampled_tokens": counter("rollq_sampled_tokens", "Sampled tokens of graded rollouts.", "run"),
}
"""Of a run's totals, by their names in `LedgerReader.stats`."""

LEDGER_METRICS = (
    *(UP, UNREADABLE, MEMORY, MEMORY_LIMIT, WORKERS, SLOTS, IN_FLIGHT, WITHOUT_ENGINE),
    *(QUEUED, LEASED, DEAD, GROUPS, OLDEST, STEP, STALENESS, REWARD, LAG),
    *(ROLLOUTS, FAILURES, SECONDS),
    *TOTALS.values(),
)
"""All of them."""


class RunMetrics:
    """The metrics of one run, or of the MOST_RUNS that matter most."""

    def __init__(self, connection: Any, run: str | None = None) -> None:
        self._redis = connection
        self._run = run
        self._dead: dict[str, dict[bytes, tuple[float, str]]] = {}
        """By run: the dead jobs that were looked up, when each died, and its class."""

    def read(self) -> list[Sample]:
        """What is so now. Without Redis it says only that."""
        try:
            return [Sample(UP, (), 1), *self._fleet(), *self._runs()]
        except (LedgerError, *CONNECTION_ERRORS) as e:
            log.warning("metrics: %s: %s", type(e).__name__, e)
            return [Sample(UP, (), 0)]

    def _fleet(self) -> Iterator[Sample]:
        found = live_workers(self._redis)
        yield Sample(WORKERS, (), len(found))
        yield Sample(SLOTS, (), sum(worker.slots for worker in found))
        yield Sample(IN_FLIGHT, (), sum(worker.busy for worker in found))
        yield Sample(WITHOUT_ENGINE, (), sum(worker.engine == AWAY for worker in found))
        memory = self._redis.info("memory")
        if "used_memory" in memory:
            yield Sample(MEMORY, (), memory["used_memory"])
            yield Sample(MEMORY_LIMIT, (), memory.get("maxmemory", 0))

    def _runs(self) -> list[Sample]:
        names, samples, unreadable = self._names(), [], 0
        self._dead = {run: known for run, known in self._dead.items() if run in names}
        for run in names:
            try:
                samples += self._of_run(LedgerReader(self._redis, run))
            except LedgerError as e:
                unreadable += 1
                log.warning("metrics: %s", e)
        return [Sample(UNREADABLE, (), unreadable), *samples]

    def _names(self) -> list[str]:
        if self._run is not None:
            return [self._run]
        active, known = ActiveRuns(self._redis).names(), runs(self._redis)
        return list(dict.fromkeys([*reversed(active), *reversed(known)]))[:MOST_RUNS]

    def _of_run(self, reader: LedgerReader) -> list[Sample]:
        run, stats = (reader.run,), reader.stats()
        samples = [
            Sample(QUEUED, run, stats["queued"]),
            Sample(LEASED, run, stats["leased"]),
            Sample(LAG, run, self._reaper_lag(reader) if stats["queued"] or stats["leased"] else 0.0),
            *(Sample(metric, run, stats[name]) for name, metric in TOTALS.items()),
            *spread(GROUPS, {place: stats[f"groups_{place}"] for place in PLACES}, before=run),
            *spread(ROLLOUTS, stats["stops"], GRADED, run),
            *spread(FAILURES, stats["failures"], FailureClass, run),
            *spread(SECONDS, time_spent(reader.scripts), WAITS, run),
            *spread(DEAD, self._dead_by_class(reader), FailureClass, run),
            *self._ages(reader, stats["policy"]),
        ]
        if stats["reward_mean"] is not None:
            samples.append(Sample(REWARD, run, stats["reward_mean"]))
        return samples

    def _reaper_lag(self, reader: LedgerReader) -> float:
        meta = reader.keys.meta
        beat = reader.scripts.guard(meta, lambda: self._redis.hget(meta, "beat"))
        return max(0.0, reader.scripts.now() - float(beat or reader.began()))

    def _ages(self, reader: LedgerReader, policy: dict[str, Any] | None) -> Iterator[Sample]:
        """How old and how stale the groups are. Those of a state wait in the order in which they were submitted."""
        now, run = reader.scripts.now(), reader.run
        if policy is not None:
            yield Sample(STEP, (run,), policy["step"])
        for place in PLACES:
            submitted, started = self._oldest(reader, place)
            yield Sample(OLDEST, (run, place), max(0.0, now - min(submitted, default=now)))
            if policy is not None:
                yield Sample(STALENESS, (run, place), max(0, policy["step"] - min(started, default=policy["step"])))

    def _oldest(self, reader: LedgerReader, place: str) -> tuple[list[float], list[int]]:
        """When the oldest groups of the place were submitted, and in which steps they began, where that is known."""
        pipe = self._redis.pipeline(transaction=False)
        for purpose in Purpose:
            key = f"{reader.keys.prefix}{place}:{purpose}"
            for name in reader.scripts.guard(key, partial(self._redis.zrange, key, 0, LOOKED_AT - 1)):
                pipe.hmget(reader.keys.group(text(name)), "at", "started")
        rows = reader.scripts.guard("groups", pipe.execute)
        found = [(number(at), number(started)) for at, started in rows]
        return [at for at, _ in found if at is not None], [int(step) for _, step in found if step is not None]

    def _dead_by_class(self, reader: LedgerReader) -> dict[str, float]:
        """Each dead job is looked up once, because its class does not change."""
        key, known = reader.keys.dead, self._dead.get(reader.run, {})
        pipe = self._redis.pipeline(transaction=False)
        pipe.zcard(key)
        pipe.zrevrange(key, 0, MOST_DEAD - 1, withscores=True)
        count, rows = reader.scripts.guard(key, pipe.execute)
        found = {job: known[job] for job, died in rows if job in known and known[job][0] == died}
        new = [(job, died) for job, died in rows if job not in found]
        for job, _ in new:
            pipe.hget(reader.keys.job(job.decode("utf-8", "replace")), "class")
        for (job, died), failure in zip(new, pipe.execute(raise_on_error=False), strict=True):
            found[job] = (died, _class(failure))
        self._dead[reader.run] = found
        by_class = Counter(failure for _, failure in found.values())
        return {**by_class, EARLIER: max(0, count - len(found))}


def _class(failure: object) -> str:
    """The class in a job's record; that of the job for a record that cannot be read, as in `LedgerReader.dead`."""
    text = failure.decode("utf-8", "replace") if isinstance(failure, bytes) else ""
    return text if text in set(FailureClass) else FailureClass.JOB
