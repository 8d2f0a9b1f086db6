"""Reads the journals of finished jobs, many in one round trip. A job that cannot be read costs no
other.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import redis

from rollq.errors import ContractError, UnknownSchema
from rollq.job import Job
from rollq.ledger.records import joined, sample_of
from rollq.ledger.scripts import Scripts
from rollq.trajectory import Trajectory
from rollq.wire.codec import read_trajectory


def read_finished(scripts: Scripts, job_ids: Sequence[str]) -> list[Trajectory | ContractError]:
    """The trajectories of done jobs. A job that cannot be read has its error instead.

    Raises LedgerError, and UnknownSchema when another version of rollq wrote one of them.
    """
    group_of = {job_id: scripts.parse(job_id)[0] for job_id in job_ids}
    groups = list(dict.fromkeys(group_of.values()))
    pipe = scripts.redis.pipeline(transaction=False)
    keys = scripts.keys
    for group in groups:
        pipe.hget(keys.group(group), "body")
        pipe.hgetall(keys.prompts(group))
    for job_id in job_ids:
        pipe.hmget(keys.job(job_id), "body", "attempt")
        pipe.lrange(keys.journal(job_id), 0, -1)
    replies = iter(read_replies(scripts, "reading trajectories", pipe))
    shared = {group: (next(replies), next(replies)) for group in groups}
    decoded: dict[bytes, Job] = {}
    trajectories = []
    for job_id in job_ids:
        record, journal = next(replies), next(replies)
        trajectories.append(_read(job_id, shared[group_of[job_id]], record, journal, decoded))
    return trajectories


def read_replies(scripts: Scripts, what: str, pipe: Any) -> list[Any]:
    """The pipeline's replies, with the error in place of a key of another type. Raises LedgerError
    for other refusals: those of a Redis that is busy or failing over say nothing about the jobs.
    """
    replies: list[Any] = scripts.guard(what, partial(pipe.execute, raise_on_error=False))
    for reply in replies:
        if isinstance(reply, redis.ResponseError) and not str(reply).startswith("WRONGTYPE"):
            raise scripts.error_for(what, reply)
    return replies


def ended_by(trajectory: Trajectory, attempt: int) -> Trajectory:
    """Names the attempt that ended the journal. The header is that of the attempt that began it."""
    return replace(trajectory, header=replace(trajectory.header, attempt=attempt))


def _read(
    job_id: str, shared: tuple[Any, Any], record: Any, journal: Any, decoded: dict[bytes, Job]
) -> Trajectory | ContractError:
    group_body, prompts = shared
    for reply in (group_body, prompts, record, journal):
        if isinstance(reply, Exception):
            return ContractError(f"job {job_id}: {reply}")
    body = record[0] or group_body
    attempt = record[1]
    if not body or not journal:
        return ContractError(f"job {job_id}: its {'journal' if body else 'body'} is gone")
    try:
        blobs = joined(journal, prompts, job_id)
        trajectory = read_trajectory(sample_of(body, job_id, decoded), blobs[0], blobs[1:])
        if not trajectory.graded:
            return ContractError(f"job {job_id}: its journal has no graded end")
        return ended_by(trajectory, int(attempt))
    except UnknownSchema:
        raise
    except ContractError as e:
        return e
    except (TypeError, ValueError) as e:
        return ContractError(f"job {job_id}: attempt {attempt!r} is not a number: {e}")
