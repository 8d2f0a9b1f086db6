"""Unfinished jobs of a run's oldest open groups, and the call that each of them waits for.

A batch waits for its slowest members, so these are the jobs to look at when nothing comes. What is
being played is as of the worker's last registration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollq.job import job_id
from rollq.ledger.workers.live_workers import READY, REGISTER_EVERY_S, SILENT_S, LiveWorker
from rollq.snapshot.fleet import FleetSnapshot
from rollq.snapshot.rollouts import GroupRecord, Rollout, RolloutReader
from rollq.snapshot.run import failure_line

QUEUED, LEASED = "queued", "leased"


@dataclass(frozen=True, slots=True, kw_only=True)
class LateJob:
    """A queued or leased member of an open group."""

    job_id: str
    state: str
    attempt: int
    """Number of the last claim. 0 before the first."""
    failures: int
    """Failures of earlier attempts."""
    last_failure: str
    """See `failure_line`; empty without one."""
    turns: int
    """Turns in its journal."""
    worker: str
    """The worker that plays it; empty while it is queued."""
    played_s: float
    """Seconds since it was claimed; 0 while it is queued."""
    waits_for: str
    """`engine`, `environment.step(...)`, `queue`, and the like."""
    waits_s: float | None
    """Seconds of that wait. None where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateGroup:
    """An open group and its unfinished members, those that are being played the longest first."""

    group: str
    purpose: str
    size: int
    """Graded members that it needs."""
    graded: int
    """Graded members so far."""
    open_s: float | None
    """Seconds since it was submitted; None if its record does not say."""
    jobs: tuple[LateJob, ...]
    damage: str = ""
    """Why its record, or that of a member, cannot be read."""


def late_groups(reader: RolloutReader, fleet: FleetSnapshot, limit: int) -> list[LateGroup]:
    """The `limit` groups of the run that were submitted first, of those that are open. `fleet`:
    read with this run and as many of its oldest groups. Raises LedgerError.
    """
    (run,) = fleet.runs
    records = reader.groups([group.name for group in run.groups["open"][:limit]])
    members = {
        name: [job_id(run.run, name, sample) for sample in range(record.members)]
        for name, record in records.items()
    }
    rollouts = reader.rollouts([id for ids in members.values() for id in ids], records)
    workers = {worker.name: worker for worker in fleet.workers}
    return [
        _late_group(name, record, [rollouts[id] for id in members[name]], workers, run.at)
        for name, record in records.items()
    ]


def _late_group(
    name: str,
    record: GroupRecord,
    rollouts: Sequence[Rollout | Exception | None],
    workers: Mapping[str, LiveWorker],
    now: float,
) -> LateGroup:
    errors = [str(rollout) for rollout in rollouts if isinstance(rollout, Exception)]
    jobs: list[LateJob] = []
    for rollout in rollouts:
        if isinstance(rollout, Rollout) and rollout.state in (QUEUED, LEASED) and not errors:
            jobs.append(_late_job(rollout, workers, now))
    jobs.sort(key=lambda job: (job.state == QUEUED, -job.played_s, job.job_id))
    return LateGroup(
        group=name,
        purpose=record.purpose,
        size=record.size,
        graded=record.graded,
        open_s=None if record.submitted is None else now - record.submitted,
        jobs=tuple(jobs),
        damage=errors[0] if errors else "",
    )


def _late_job(rollout: Rollout, workers: Mapping[str, LiveWorker], now: float) -> LateJob:
    is_leased = rollout.state == LEASED
    waits_for = _queue_wait(rollout.not_before - now)
    waits_s = None
    if is_leased:
        waits_for, waits_s = _call_wait(rollout, workers)
    return LateJob(
        job_id=rollout.job.id,
        state=rollout.state,
        attempt=rollout.attempt,
        failures=rollout.failures,
        last_failure=failure_line(rollout.failure, rollout.reason) if rollout.failures else "",
        turns=rollout.turns,
        worker=rollout.worker if is_leased else "",
        played_s=now - (rollout.began or now) if is_leased else 0.0,
        waits_for=waits_for,
        waits_s=waits_s,
    )


def _call_wait(rollout: Rollout, workers: Mapping[str, LiveWorker]) -> tuple[str, float | None]:
    """The call that is under way, and for how many seconds."""
    worker = workers.get(rollout.worker)
    if worker is None or worker.age_s >= SILENT_S:
        return "a worker of which nothing is heard", None
    for wait in worker.waits:
        if wait.job_id == rollout.job.id:
            state = _engine_state(worker) if wait.what == "engine" else ""
            return wait.what + state, wait.seconds
    return f"no wait of more than {REGISTER_EVERY_S:g} s", None


def _engine_state(worker: LiveWorker) -> str:
    """The states of the worker's engines in brackets; empty when one may generate."""
    states = {engine.state for engine in worker.engines} or {worker.engine}
    return "" if READY in states else f" ({', '.join(sorted(states))})"


def _queue_wait(backoff_s: float) -> str:
    return f"queue, for {backoff_s:.0f} s more after a failure" if backoff_s > 0 else "queue"
