"""Values to bytes and back: jobs, headers of journals, and trajectories. docs/wire.md has the
layout byte by byte.

The invariant: what is decoded equals what was encoded, or a ContractError names the job. Every blob
is a msgpack array that starts with the schema's version and its kind. Token ids, logprobs and texts
are compressed, each apart, and texts are read when they are first asked for. It knows nothing of
Redis. `events` has the events. Of a trajectory only their order is checked here.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

from rollq.errors import ContractError, UnknownSchema
from rollq.events import Closed, Event, Observed, Prompt, Sampled
from rollq.job import Budget, Job, Json
from rollq.trajectory import Header, Trajectory
from rollq.wire.blob import (
    DIGEST,
    SCHEMA,
    pack,
    plain,
    unpack,
    wrong,
)
from rollq.wire.events import decode_event

MAX_LABELS = 2048
"""Most bytes of a job's packed labels."""


_DEFAULTS: dict[str, Any] = {
    field.name: field.default if field.default_factory is MISSING else field.default_factory()
    for field in fields(Job)
}
"""All fields of a job. A blob has those that differ from their default, so no default may change
after the first release.
"""


def encode_job(job: Job) -> bytes:
    """The job's blob. Raises ContractError when its mappings hold what JSON cannot say."""
    content = _content(job)
    if job.seq:
        content["seq"] = job.seq
    return pack([SCHEMA, "job", content], job.id)


def decode_job(blob: bytes) -> Job:
    """The job in a blob. Raises UnknownSchema, also for a field of a newer rollq, or
    ContractError.
    """
    where = "a job"
    [content] = unpack(blob, "job", 1, where)
    if type(content) is not dict:
        wrong(where, "fields", content)
    unknown = [name for name in content if name not in _DEFAULTS]
    if unknown:
        raise UnknownSchema(
            f"{where}: this rollq does not know its fields {', '.join(map(str, unknown))}: "
            "upgrade rollq here"
        )
    try:
        if "budget" in content:
            content["budget"] = Budget(**content["budget"])
        return Job(**content)
    except ContractError as e:
        raise ContractError(f"{where}: {e}") from e
    except (TypeError, ValueError) as e:
        raise ContractError(f"{where}: unreadable job: {type(e).__name__}: {e}") from e


def job_digest(job: Job) -> bytes:
    """The first 16 bytes of the sha256 of the job's content: everything but `seq`, whatever order
    its mappings are in.
    """
    text = json.dumps(_content(job), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()[:DIGEST]


def encode_header(header: Header, job_id: str = "?") -> bytes:
    """The header's blob: entry 0 of a journal. Raises ContractError."""
    where = f"job {job_id}: header"
    *texts, kwargs, at = (getattr(header, name) for name in _HEADER)
    return pack([SCHEMA, "header", *texts, plain(kwargs, where), float(at)], where)


def decode_header(blob: bytes, job_id: str = "?") -> Header:
    where = f"job {job_id}: header"
    fields = unpack(blob, "header", 10, where)
    attempt, *texts, kwargs, at = fields
    if type(attempt) is not int or attempt < 0 or type(at) is not float:
        wrong(where, "attempt or at", fields)
    for text in texts:
        if type(text) is not str:
            wrong(where, "a text", text)
    if type(kwargs) is not dict:
        wrong(where, "template_kwargs", kwargs)
    return Header(**dict(zip(_HEADER, fields, strict=True)))


_HEADER: tuple[str, ...] = Header.__slots__  # in the order of the wire, which a test pins


def read_trajectory(job: Job, header: bytes | Header, events: Sequence[bytes]) -> Trajectory:
    """A trajectory from its job and its journal's blobs.

    Raises ContractError; also for events out of order: a `Prompt` comes first, a `Closed` last or
    not at all.
    """
    job_id = job.id
    decoded = [decode_event(event, job_id) for event in events]
    _check_order(decoded, job_id)
    head = header if isinstance(header, Header) else decode_header(header, job_id)
    return Trajectory(job=job, header=head, events=decoded)


def _check_order(events: Sequence[Event], job_id: str) -> None:
    if any(isinstance(event, Closed) for event in events[:-1]):
        raise ContractError(f"job {job_id}: an event follows Closed")
    traces = 0
    for event in events:
        if isinstance(event, Prompt):
            traces += 1
        elif isinstance(event, Sampled | Observed) and (event.trace or 0) >= traces:
            raise ContractError(
                f"job {job_id}: an event of trace {event.trace or 0}, where there are {traces}"
            )


def _content(job: Job) -> dict[str, Json]:
    """The fields that differ from their defaults, but for `seq`, as plain JSON values."""
    content = {}
    for name, default in _DEFAULTS.items():
        value = getattr(job, name)
        if name == "seq" or value == default:
            continue
        if isinstance(value, Budget):
            value = {**asdict(value), "deadline_s": float(value.deadline_s)}
        try:
            content[name] = plain(value, name)
        except ContractError as e:
            raise ContractError(f"job {job.id}: {e}") from e
    size = len(pack(content["labels"], "labels")) if job.labels else 0
    if size > MAX_LABELS:
        raise ContractError(
            f"job {job.id}: labels of {size} bytes: at most {MAX_LABELS} travel with a job"
        )
    return content
