"""Arrays beside the journals of jobs: written once at the end of an episode, read only when they
are asked for.

They are those of the attempt that ended the job, and are deleted with its journal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from rollq.errors import ContractError, Fenced, UnknownSchema
from rollq.ledger.finished_jobs import read_replies
from rollq.ledger.scripts import Scripts
from rollq.trajectory_extras import Extra
from rollq.wire.extras import decode_extra, encode_extra

LEASE = "#"
"""Field with the lease of the attempt that wrote the others. Arrays have other names."""


def save_extras(scripts: Scripts, job_id: str, lease: str, extras: Mapping[str, Extra]) -> None:
    """Keeps these arrays, in place of those of an earlier attempt. Call it before the job is
    completed.

    Raises Fenced when the lease is lost, ContractError for an array that cannot be kept.
    """
    check_names(list(extras), f"job {job_id}: ")
    args: list[str | bytes] = [job_id, lease]
    for name, extra in extras.items():
        args += [name, encode_extra(extra, f"job {job_id}: extra {name}")]
    if scripts.call("save_extras", *args).status == "fenced":
        raise Fenced(f"job {job_id}: the lease {lease} is lost, so its extras were refused")


def check_names(names: Sequence[str], where: str = "") -> None:
    """Raises ContractError, which begins with `where`, unless all of them are names that an extra
    can have.
    """
    if isinstance(names, str):
        raise ContractError(f"{where}names of extras belong in a list, not in a text: [{names!r}]")
    for name in names:
        if not isinstance(name, str) or name in ("", LEASE):
            raise ContractError(f"{where}{name!r} is not the name of an extra")


def read_extras(
    scripts: Scripts, job_ids: Sequence[str], names: Sequence[str]
) -> list[dict[str, Extra] | ContractError]:
    """Arrays of these names (`check_names`) that each done job has, or the error of unreadable
    ones.

    Raises LedgerError, and UnknownSchema when another version of rollq wrote one of them.
    """
    pipe = scripts.redis.pipeline(transaction=False)
    for job_id in job_ids:
        pipe.hget(scripts.keys.job(job_id), "ended")
        pipe.hmget(scripts.keys.extras(job_id), LEASE, *names)
    replies = read_replies(scripts, "reading extras", pipe)
    rows = zip(job_ids, replies[::2], replies[1::2], strict=True)
    return [_decode(job_id, names, ended, stored) for job_id, ended, stored in rows]


def _decode(
    job_id: str, names: Sequence[str], ended: bytes | None, stored: Any
) -> dict[str, Extra] | ContractError:
    if isinstance(stored, redis.ResponseError):
        return ContractError(f"job {job_id}: extras: {stored}")
    lease, *blobs = stored
    if lease != ended:
        return {}
    extras = {}
    try:
        for name, blob in zip(names, blobs, strict=True):
            if blob is not None:
                extras[name] = decode_extra(blob, f"job {job_id}: extra {name}")
        return extras
    except UnknownSchema:
        raise
    except ContractError as e:
        return e
