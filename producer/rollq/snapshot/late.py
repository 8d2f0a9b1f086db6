"""The unfinished jobs of a run's oldest open groups, and what each of them is waiting for.

A batch waits for its slowest members, so these are the jobs to look at when nothing comes. What is
being played is as of the worker's last registration.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollq.ledger.constants import LEASE_S
from rollq.ledger.workers.live_workers import AWAY, READY, REGISTER_EVERY_S, SILENT_S, LiveWorker
from rollq.snapshot.fleet import FleetSnapshot
from rollq.snapshot.rollouts import Rollout, RolloutReader
from rollq.snapshot.run import failure_line

QUEUED, LEASED = "queued", "leased"


@dataclass(frozen=True, slots=True, kw_only=True)
class LateJob:
    """A queued or leased member of an open group."""

    job_id: str
    state: str
    attempt: int
    """Number of the last claim; 0: it was never claimed."""
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
    """What it is waiting for, in words."""
    waits_s: float | None
    """For how many seconds, where that is known."""


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
    """Why its record, or that of a member, cannot be read. It is dropped once a worker meets it."""


def late_groups(reader: RolloutReader, fleet: FleetSnapshot, limit: int) -> list[LateGroup]:
    """The `limit` groups of the run that were submitted first, of those that are open. `fleet`:
    read with this run and as many of its oldest groups. Raises LedgerError.
    """
    (run,) = fleet.runs
    records = reader.groups([group.name for group in run.groups["open"][:limit]])
    ids = {
        name: [f"{run.run}/{name}/{n}" for n in range(record.members)]
        for name, record in records.items()
    }
    by_id = reader.rollouts([id for members in ids.values() for id in members], records)
    workers = {worker.name: worker for worker in fleet.workers}
    groups = []
    for name, record in records.items():
        rollouts = [by_id[id] for id in ids[name]]
        damage = next((str(each) for each in rollouts if isinstance(each, Exception)), "")
        jobs = _jobs([each for each in rollouts if isinstance(each, Rollout)], workers, run.at)
        opened = None if record.submitted is None else run.at - record.submitted
        groups.append(
            LateGroup(
                group=name,
                purpose=record.purpose,
                size=record.size,
                graded=record.graded,
                open_s=opened,
                jobs=() if damage else tuple(jobs),
                damage=damage,
            )
        )
    return groups


def _jobs(
    rollouts: Iterable[Rollout], workers: Mapping[str, LiveWorker], now: float
) -> Sequence[LateJob]:
    jobs = [_job(each, workers, now) for each in rollouts if each.state in (QUEUED, LEASED)]
    return sorted(jobs, key=lambda job: (job.state == QUEUED, -job.played_s, job.job_id))


def _job(rollout: Rollout, workers: Mapping[str, LiveWorker], now: float) -> LateJob:
    leased = rollout.state == LEASED
    waits = (
        _played(rollout.job.id, rollout.worker, workers)
        if leased
        else (_queued(rollout.not_before - now), None)
    )
    return LateJob(
        job_id=rollout.job.id,
        state=rollout.state,
        attempt=rollout.attempt,
        failures=rollout.failures,
        last_failure=failure_line(rollout.failure, rollout.reason) if rollout.failures else "",
        turns=rollout.turns,
        worker=rollout.worker if leased else "",
        played_s=now - (rollout.began or now) if leased else 0.0,
        waits_for=waits[0],
        waits_s=waits[1],
    )


def _played(id: str, name: str, workers: Mapping[str, LiveWorker]) -> tuple[str, float | None]:
    worker = workers.get(name)
    if worker is None:
        again = f"unless it renews its lease, the job goes back to the queue within {LEASE_S:g} s"
        return f"nothing is heard of its worker: {again}", None
    if worker.age_s >= SILENT_S:
        return f"nothing was heard of its worker for {worker.age_s:g} s", None
    wait = next((wait for wait in worker.waits if wait.job_id == id), None)
    if wait is None:
        return f"no wait of more than {REGISTER_EVERY_S:g} s", None
    return wait.what + (_state_of_engines(worker) if wait.what == "engine" else ""), wait.seconds


def _state_of_engines(worker: LiveWorker) -> str:
    """Why none of them generates, in brackets; empty when one may."""
    if worker.engine == AWAY:
        return " (away)"
    states = {engine.state for engine in worker.engines}
    return f" ({', '.join(sorted(states))})" if states and READY not in states else ""


def _queued(backoff_s: float) -> str:
    return (
        f"queue, not before {backoff_s:.0f} s have passed (after a failure)"
        if backoff_s > 0
        else "queue"
    )
