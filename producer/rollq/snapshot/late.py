"""The unfinished jobs of a run's oldest open groups, and what each of them is waiting for.

A batch waits for its slowest members, so these are the jobs to look at when nothing comes. It only reads; what is being
played is as of the worker's last registration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollq.errors import FailureClass, LedgerError, Unwritable
from rollq.job import Purpose
from rollq.ledger.constants import LEASE_S
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import State
from rollq.ledger.stored import group_size, number, text, whole
from rollq.ledger.workers.live_workers import AWAY, READY, REGISTER_EVERY_S, SILENT_S, LiveWorker, Wait

LONGEST_LINE = 160
"""Characters of the reason of a failure that are told."""
_OF_GROUP = ("purpose", "size", "spare", "done", "at")
_OF_JOB = (
    *("state", "attempt", "worker", "claimed", "turned", "not_before", "class", "reason"),
    *(f"fail:{failure}" for failure in FailureClass),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedJob:
    """A queued or leased member of an open group."""

    job_id: str
    state: State
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
class OpenGroup:
    """An open group and its unfinished members, those that are being played the longest first."""

    group: str
    purpose: Purpose
    size: int
    """Graded members that it needs."""
    graded: int
    """Graded members so far."""
    open_s: float | None
    """Seconds since it was submitted; None for a group that an older rollq submitted."""
    jobs: tuple[UnfinishedJob, ...]
    damage: str = ""
    """Why its record, or that of a member, cannot be read. It is dropped once a worker meets it."""


def late_groups(reader: LedgerReader, at: float, workers: Sequence[LiveWorker], limit: int) -> list[OpenGroup]:
    """The `limit` groups of the run that were submitted first, of those that are open. `at` and `workers`: of a
    snapshot of the fleet. Raises LedgerError."""
    found: list[tuple[float, str, Purpose]] = []
    for purpose in Purpose:
        key = reader.keys.groups("open", purpose)
        oldest = partial(reader.redis.zrange, key, 0, limit - 1, withscores=True)
        found += [(seq, text(name), purpose) for name, seq in reader.scripts.guard(key, oldest)]
    by_name = {worker.name: worker for worker in workers}
    return [_group_or_damage(reader, name, purpose, by_name, at) for _, name, purpose in sorted(found)[:limit]]


def _group_or_damage(
    reader: LedgerReader, name: str, purpose: Purpose, workers: Mapping[str, LiveWorker], now: float
) -> OpenGroup:
    try:
        return _group(reader, name, purpose, workers, now)
    except Unwritable:
        raise
    except LedgerError as e:
        return OpenGroup(group=name, purpose=purpose, size=0, graded=0, open_s=None, jobs=(), damage=str(e))


def _group(
    reader: LedgerReader, name: str, purpose: Purpose, workers: Mapping[str, LiveWorker], now: float
) -> OpenGroup:
    key = reader.keys.group(name)
    got = reader.scripts.guard(key, lambda: reader.redis.hmget(key, _OF_GROUP))
    (size, members), submitted = group_size(got[1], got[2], key), number(got[4])
    ids = [f"{reader.run}/{name}/{sample}" for sample in range(members)]
    pipe = reader.redis.pipeline(transaction=False)
    for id in ids:
        pipe.hmget(reader.keys.job(id), _OF_JOB)
    records = zip(ids, reader.scripts.guard(key, pipe.execute), strict=True)
    jobs = [_job(id, reader.keys.job(id), raw, workers, now) for id, raw in records if raw[0] in (b"queued", b"leased")]
    return OpenGroup(
        group=name,
        purpose=purpose,
        size=size,
        graded=whole(got[3], key, "done"),
        open_s=None if submitted is None else now - submitted,
        jobs=tuple(sorted(jobs, key=lambda job: (job.state is State.QUEUED, -job.played_s, job.job_id))),
    )


def _job(id: str, key: str, raw: list[Any], workers: Mapping[str, LiveWorker], now: float) -> UnfinishedJob:
    state, attempt, worker, claimed, turns, not_before, failure, reason, *failures = raw
    leased = state == b"leased"
    playing = text(worker) if leased else ""
    failed = sum(whole(count, key, "count of failures") for count in failures)
    what, seconds = _played(id, playing, workers) if leased else (_queued((number(not_before) or 0.0) - now), None)
    return UnfinishedJob(
        job_id=id,
        state=State.LEASED if leased else State.QUEUED,
        attempt=whole(attempt, key, "attempt"),
        failures=failed,
        last_failure=failure_line(failure, reason) if failed else "",
        turns=whole(turns, key, "turned"),
        worker=playing,
        played_s=now - (number(claimed) or now) if leased else 0.0,
        waits_for=what,
        waits_s=seconds,
    )


def failure_line(failure: bytes | None, reason: bytes | None) -> str:
    """Class of a job's last failure, and the first line of its reason: short, and in printable characters, because
    others wrote it."""
    first, *_ = text(reason).strip().splitlines() or [""]
    short = first if len(first) <= LONGEST_LINE else first[: LONGEST_LINE - 3] + "..."
    return f"{text(failure)}: {''.join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in short)}"


def _played(id: str, name: str, workers: Mapping[str, LiveWorker]) -> tuple[str, float | None]:
    worker = workers.get(name)
    if worker is None:
        again = f"unless it renews its lease, the job goes back to the queue within {LEASE_S:g} s"
        return f"nothing is heard of its worker: {again}", None
    if worker.age_s >= SILENT_S:
        return f"nothing was heard of its worker for {worker.age_s:g} s", None
    wait: Wait | None = next((wait for wait in worker.waits if wait.job_id == id), None)
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
    return f"queue, not before {backoff_s:.0f} s have passed (after a failure)" if backoff_s > 0 else "queue"
