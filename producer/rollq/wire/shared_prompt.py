"""The prompt that opens the journals of a group's samples, stored once: content, and a small
reference in each journal.

All samples of a group begin with the same tokens and texts, but not at the same time. So the
content is the ids and the texts as the blob has them, and the reference has their digest and the
time. Joined, they are the blob again, byte for byte.
"""

import hashlib
from typing import Any

from rollq.errors import ContractError
from rollq.wire.blob import DIGEST, SCHEMA, check_version, heading, pack, unpack, unpack_each


def split_prompt(blob: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Reference, digest (16 bytes) and content of a prompt's blob; None for every other blob,
    also for the prompt of one of several models. Raises ContractError.
    """
    if heading(blob)[1] != "prompt":
        return None
    _, _, ids, texts, at, *named = unpack(blob, "prompt", None, "a prompt")
    if named:
        return None
    content = pack(ids, "a prompt") + pack(texts, "a prompt")
    digest = _digest(content)
    return pack([SCHEMA, "shared", digest, at], "a reference"), digest, content


def prompt_digest(blob: bytes, job_id: str = "?") -> bytes | None:
    """The digest in a reference; None for every other blob. Raises UnknownSchema for another
    version's blob, and ContractError for a damaged reference.
    """
    if heading(blob)[1] != "shared":
        check_version(blob, f"job {job_id}")
        return None
    return _read(blob, job_id)[0]


def join_prompt(reference: bytes, content: bytes | None, job_id: str = "?") -> bytes:
    """The prompt's blob, byte for byte as it was split. Raises ContractError unless the content is
    the reference's.
    """
    digest, at = _read(reference, job_id)
    if content is None:
        raise ContractError(f"job {job_id}: the prompt that its group shares is gone")
    if _digest(content) != digest:
        raise ContractError(f"job {job_id}: the prompt that its group shares is damaged")
    return pack([SCHEMA, "prompt", *unpack_each(content), at], f"job {job_id}")


def _read(reference: bytes, job_id: str) -> tuple[bytes, float]:
    digest: Any
    digest, at = unpack(reference, "shared", 2, f"job {job_id}: the reference to its prompt")
    if type(digest) is not bytes or len(digest) != DIGEST or type(at) is not float:
        raise ContractError(f"job {job_id}: the reference to its prompt is damaged")
    return digest, at


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:DIGEST]
