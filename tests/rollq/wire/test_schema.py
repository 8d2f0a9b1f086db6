"""Blobs of other versions of the schema: an error that names both versions and the remedy, and no
other reading.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import ContractError, UnknownSchema
from rollq.ledger.records import sample_of
from rollq.wire.blob import SCHEMA
from rollq.wire.codec import decode_header, encode_header, encode_job
from rollq.wire.events import decode_event, encode_event
from rollq.wire.shared_prompt import join_prompt, prompt_digest, split_prompt
from tests.rollq.samples import decoded, encoded, events, job, prompt, trajectory

REFERENCE, _, CONTENT = split_prompt(encode_event(prompt(), "r/g/0")) or (b"", b"", b"")
READERS: list[tuple[bytes, Callable[[bytes], Any]]] = [
    (encode_job(job()), lambda blob: sample_of(blob, "r/g/0")),
    (encode_header(trajectory().header, "r/g/0"), lambda blob: decode_header(blob, "r/g/0")),
    *(
        (encode_event(event, "r/g/0"), lambda blob: decode_event(blob, "r/g/0"))
        for event in events()
    ),
    (REFERENCE, lambda blob: prompt_digest(blob, "r/g/0")),
    (REFERENCE, lambda blob: join_prompt(blob, CONTENT, "r/g/0")),
]


def in_version(blob: bytes, version: int) -> bytes:
    return msgpack.packb([version, *msgpack.unpackb(blob)[1:]])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("blob", "read"), READERS)
@pytest.mark.parametrize("version", [SCHEMA + 1, SCHEMA - 1])
def test_one_version_ahead_and_one_behind(
    blob: bytes, read: Callable[[bytes], Any], version: int
) -> None:
    assert in_version(blob, SCHEMA) == blob
    read(blob)
    with pytest.raises(
        UnknownSchema, match=f"job r/g/0.*schema {version},.* reads schema {SCHEMA}: use the rollq"
    ):
        read(in_version(blob, version))


@pytest.mark.parametrize("at", range(8))
def test_a_journal_with_one_foreign_blob_is_of_an_unknown_schema(at: int) -> None:
    blobs = encoded(trajectory())
    blobs[at] = in_version(blobs[at], SCHEMA + 1)
    with pytest.raises(UnknownSchema):
        decoded(blobs)


@given(st.integers(1, 127).filter(lambda version: version != SCHEMA), st.binary(max_size=40))
def test_the_version_is_read_whatever_follows_version_and_kind(version: int, rest: bytes) -> None:
    for head in (b"\x92", b"\x9f", b"\xdc\x00\x20"):
        blob = head + bytes([version]) + b"\xa4kind" + rest
        for _, read in READERS:
            with pytest.raises(UnknownSchema):
                read(blob)


@given(st.sampled_from([b"\xc1", b"\x91\x07\x08", b"\x9f\x07\x08"]), st.binary(max_size=40))
def test_what_is_no_blob_is_not_of_an_unknown_schema(head: bytes, junk: bytes) -> None:
    with pytest.raises(ContractError) as caught:
        decode_event(head + junk, "r/g/0")
    assert not isinstance(caught.value, UnknownSchema)
