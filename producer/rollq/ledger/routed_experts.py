"""The experts that tokens were routed to, in parts beside the journals of jobs that ask for them (wire.routed_experts).

A part is in Redis before the event that it belongs to, so a journal never has an event without its part. They go with
the journal. Parts are never read by the worker that wrote them: a resumed episode goes on behind them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import redis

from rollq.errors import ContractError, Fenced, JournalConflict, UnknownSchema
from rollq.ledger.finished_jobs import read_replies
from rollq.ledger.scripts import Scripts
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS, Extra
from rollq.wire.extras import decode_extra, encode_extra
from rollq.wire.routed_experts import join_parts


def encode_part(job_id: str, part: Extra) -> bytes:
    """The part's blob. Raises ContractError."""
    return encode_extra(part, _where(job_id))


def keep_parts(scripts: Scripts, job_id: str, lease: str, index: int, parts: Sequence[bytes]) -> None:
    """Keep these parts as those from `index` on, in place of what is there. Without parts: check that those before are
    there, and delete the rest.

    Raises Fenced when the lease is lost, JournalConflict when Redis lost parts before `index`.
    """
    status, *rest = scripts.call("keep_experts", [job_id, lease, index, *parts])
    if status == b"fenced":
        raise Fenced(f"job {job_id}: the lease {lease} is lost, so its routed experts were refused")
    if status == b"conflict":
        error = JournalConflict(f"{_where(job_id)}: Redis has {rest[0]} parts of the {index} that were written")
        error.length = int(rest[0])
        raise error


def parts_kept(scripts: Scripts, job_id: str) -> int:
    """Number of parts that are there. Raises LedgerError."""
    return int(scripts.guard("reading routed experts", lambda: scripts.redis.llen(scripts.keys.routed_experts(job_id))))


def with_routed_experts(
    scripts: Scripts, found: Sequence[Trajectory | ContractError]
) -> list[Trajectory | ContractError]:
    """Those trajectories whose jobs asked for routed experts have them among their extras, or are why they have not.

    Raises LedgerError, and UnknownSchema when another version of rollq wrote one of them.
    """
    asked = [t for t in found if isinstance(t, Trajectory) and t.job.routed_experts]
    pipe = scripts.redis.pipeline(transaction=False)
    for trajectory in asked:
        pipe.lrange(scripts.keys.routed_experts(trajectory.job.id), 0, -1)
    replies = read_replies(scripts, "reading routed experts", pipe)
    joined = {t.job.id: _joined(t, parts) for t, parts in zip(asked, replies, strict=True)}
    return [joined.get(t.job.id, t) if isinstance(t, Trajectory) else t for t in found]


def _joined(trajectory: Trajectory, parts: Any) -> Trajectory | ContractError:
    where = _where(trajectory.job.id)
    if isinstance(parts, redis.ResponseError):
        return ContractError(f"{where}: {parts}")
    try:
        experts = join_parts(trajectory, [decode_extra(part, where) for part in parts])
    except UnknownSchema:
        raise
    except ContractError as e:
        return e
    return replace(trajectory, extras={**trajectory.extras, ROUTED_EXPERTS: experts})


def _where(job_id: str) -> str:
    return f"job {job_id}: routed experts"
