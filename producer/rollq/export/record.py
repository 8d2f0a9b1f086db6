"""A trajectory as one plain JSON object: the line of an exported file."""

import json
from hashlib import blake2b
from typing import Any, Self

from rollq.errors import ContractError
from rollq.export.facts import FACTS
from rollq.trajectory import Trajectory


class Unexportable(ContractError):
    """This trajectory cannot be exported. The caller rejects its job."""

    job_id: str = ""

    @classmethod
    def of(cls, trajectory: Trajectory, cause: ValueError) -> Self:
        """The error for this trajectory. The text of a ContractError names the job itself."""
        is_named = isinstance(cause, ContractError)
        job_id = trajectory.job.id
        error = cls(str(cause) if is_named else f"job {job_id}: cannot be exported: {cause}")
        error.job_id = job_id
        return error


def record(trajectory: Trajectory) -> dict[str, Any]:
    """The object on a line of an exported file.

    `tokens`, `mask`, `logprobs` and `versions` have equal length. The traces follow one another in
    them, and `traces` lists the length of each. `pieces` has the length and the finish of each of
    the engine's replies, in order, and `Sampled.asked` where an agent program asked for something.
    Where the mask is 0, the logprob is 0.0 and the version null. Raises ContractError when a text
    in Redis cannot be read.
    """
    fields = {}
    for name, fact in FACTS.items():
        value = fact.read(trajectory)
        if value is not None or not fact.is_optional:
            fields[name] = value
    return fields


def encode(trajectory: Trajectory) -> bytes:
    """The record as a line of JSON, newline included. Raises Unexportable."""
    try:
        return as_json(record(trajectory)).encode() + b"\n"
    except ValueError as e:
        raise Unexportable.of(trajectory, e) from e


def as_json(value: Any) -> str:
    """Compact JSON in ASCII, because a policy can write half a surrogate pair. Raises
    ValueError.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def digest(line: bytes) -> int:
    """A hash of a record's line, a signed integer of 64 bits. It tells two episodes of one job
    apart.
    """
    return int.from_bytes(blake2b(line, digest_size=8).digest(), "little", signed=True)
