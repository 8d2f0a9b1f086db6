"""The prompt that opens the journals of a group's samples, stored once: content, and a small reference in each journal.

All samples of a group begin with the same tokens and texts, but not at the same time. So the content is the ids and the
texts, byte for byte as they stand in the blob, and the reference has their digest and the time. Joined, they are the
blob again, byte for byte.
"""

import hashlib

from rollq.errors import ContractError
from rollq.wire.blob import DIGEST, SCHEMA, check_version, pack

AT = 9
"""Number of bytes of the time that ends a prompt's blob and a reference."""
FLOAT = 0xCB
"""The first byte of such a time: msgpack's float 64."""
PROMPT = pack([SCHEMA, "prompt", 0, 0, 0], "a prompt")[:-3]
"""What a prompt's blob begins with; content and time follow."""
REFERENCE = pack([SCHEMA, "shared", bytes(DIGEST), 0], "a reference")[: -DIGEST - 1]
"""What a reference begins with; digest and time follow."""


def split_prompt(blob: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Reference, digest (16 bytes) and content of a prompt's blob; None for every other blob."""
    if not blob.startswith(PROMPT) or len(blob) < len(PROMPT) + AT or blob[-AT] != FLOAT:
        return None
    content, at = blob[len(PROMPT) : -AT], blob[-AT:]
    digest = hashlib.sha256(content).digest()[:DIGEST]
    return REFERENCE + digest + at, digest, content


def prompt_digest(blob: bytes, job_id: str = "?") -> bytes | None:
    """The digest in a reference; None for every other blob. Raises UnknownSchema for another version's blob, and
    ContractError for a damaged reference."""
    if not blob.startswith(REFERENCE):
        check_version(blob, f"job {job_id}")
        return None
    if len(blob) != len(REFERENCE) + DIGEST + AT or blob[-AT] != FLOAT:
        raise ContractError(f"job {job_id}: the reference to its prompt is damaged")
    return blob[len(REFERENCE) : -AT]


def join_prompt(reference: bytes, content: bytes | None, job_id: str = "?") -> bytes:
    """The prompt's blob, byte for byte as it was split. Raises ContractError unless the content is the reference's."""
    digest = prompt_digest(reference, job_id)
    if digest is None:
        raise ContractError(f"job {job_id}: this entry is not a reference to a prompt")
    if content is None:
        raise ContractError(f"job {job_id}: the prompt that its group shares is gone")
    if hashlib.sha256(content).digest()[:DIGEST] != digest:
        raise ContractError(f"job {job_id}: the prompt that its group shares is damaged")
    return PROMPT + content + reference[-AT:]
