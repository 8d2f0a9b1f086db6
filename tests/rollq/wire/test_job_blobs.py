"""Jobs on the wire: golden bytes, the digest, and refusals by name."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import ContractError, UnknownSchema
from rollq.job import NAME, Budget, Job, Purpose
from rollq.ledger.records import sample_of
from rollq.trajectory import Header
from rollq.wire.blob import SCHEMA
from rollq.wire.codec import decode_header, decode_job, encode_header, encode_job, job_digest
from tests.rollq.routed_experts import ASKED
from tests.rollq.samples import job


def test_golden_job() -> None:
    assert encode_job(job(seq=3)).hex() == (
        "93" "01" "a36a6f62" "86"  # array of 3: schema 1, "job", map of 6
        "a372756e" "a172" "a567726f7570" "a167"  # run, group
        "a3656e76" "a473686f70" "a47461736b" "01"  # env, task
        "a473697a65" "02" "a3736571" "03"  # size, seq
    )  # fmt: skip


def full_job() -> Job:
    return job(
        env_args={"b": 1, "a": [None, {"c": "ü"}]},
        agent_args={"single_tool": True},
        user={"kind": "openai", "endpoint": "local", "model": "m"},
        sampling={"temperature": 0.7},
        budget=Budget(max_turns=3, deadline_s=9),
        purpose=Purpose.EVAL,
        seed=5,
        min_viable=1,
        queue="large",
        labels={"uid": "a-7", "index": 12},
        seq=8,
    )


def test_a_job_comes_back_equal() -> None:
    assert decode_job(encode_job(full_job())) == full_job()


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9)
leaves |= st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.from_regex(NAME, fullmatch=True), st.dictionaries(st.text(max_size=9), values, max_size=4)
)
@settings(deadline=None)
def test_queue_and_labels_come_back_equal(queue: str, labels: dict[str, Any]) -> None:
    made = job(queue=queue, labels=labels)
    assert decode_job(encode_job(made)) == made
    assert len(job_digest(made)) == 16


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_damaged_job_or_header_is_refused_or_readable(data: st.DataObject) -> None:
    header = Header(attempt=1, worker="w", rollq="0.1.0", template_kwargs={"k": True}, at=1.0)
    blob, read = data.draw(
        st.sampled_from(
            [(encode_job(full_job()), decode_job), (encode_header(header, "r/g/0"), decode_header)]
        )
    )
    damaged, at = bytearray(blob), data.draw(st.integers(0, len(blob) - 1))
    damaged[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    with suppress(ContractError):
        repr(read(bytes(damaged)))


def test_a_digest_is_of_the_content() -> None:
    made = full_job()
    assert job_digest(made) == job_digest(
        replace(made, seq=99, env_args={"a": [None, {"c": "ü"}], "b": 1})
    )
    changes: list[dict[str, Any]] = [
        {"seed": 6},
        {"sampling": {}},
        {"budget": Budget()},
        {"queue": "q"},
        {"labels": {}},
    ]
    for other in (replace(made, **change) for change in changes):
        assert job_digest(other) != job_digest(made)
    assert job_digest(job()).hex() == "a00fee0648439590e5a88a6a9a49e054"


@pytest.mark.parametrize(
    "changes",
    [
        {"spare": 3},
        {"template_kwargs": {"enable_thinking": False}},
        {"routed_experts": ASKED},
        {"budget": Budget(max_turns=3)},
    ],
)
def test_a_field_with_its_default_is_left_out(changes: dict[str, Any]) -> None:
    plain, changed = msgpack.unpackb(encode_job(job()))[2], job(**changes)
    assert msgpack.unpackb(encode_job(changed))[2].keys() - plain.keys() == changes.keys()
    assert decode_job(encode_job(changed)) == changed
    assert job_digest(changed) != job_digest(job())


def test_a_field_that_is_not_known_is_of_a_newer_rollq() -> None:
    version, kind, content = msgpack.unpackb(encode_job(job()))
    with pytest.raises(UnknownSchema, match=r"r/g/0.* fields origin: upgrade"):
        sample_of(msgpack.packb([version, kind, content | {"origin": 1}]), "r/g/0")


def test_another_job_is_refused() -> None:
    with pytest.raises(ContractError, match="r/h/0"):
        sample_of(encode_job(job()), "r/h/0")


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Job)} - {"seq"}))
def test_a_job_with_a_wrong_field_is_refused_by_name(name: str) -> None:
    version, kind, content = msgpack.unpackb(encode_job(job()))
    with pytest.raises(ContractError, match="r/g/0"):
        sample_of(msgpack.packb([version, kind, content | {name: -1.5}]), "r/g/0")


@pytest.mark.parametrize("content", [[], 3, None, {1: 2}, {}])
def test_what_is_no_map_of_fields_is_refused(content: object) -> None:
    with pytest.raises(ContractError, match="r/g/0"):
        sample_of(msgpack.packb([SCHEMA, "job", content]), "r/g/0")


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", math.nan, 2**70, {1: 2}, object()])
def test_a_job_that_json_cannot_say_is_refused(value: object) -> None:
    for made in (job(env_args={"x": value}), job(template_kwargs={"x": value})):
        with pytest.raises(ContractError, match="r/g/0"):
            encode_job(made)


def test_labels_are_small() -> None:
    fits = job(labels={"notes": "n" * 2038})
    assert decode_job(encode_job(fits)) == fits
    for refuse in (encode_job, job_digest):
        with pytest.raises(ContractError, match="r/g/0: labels of 2049 bytes: at most 2048"):
            refuse(job(labels={"notes": "n" * 2039}))


def test_a_bottomless_job_is_refused() -> None:
    bottomless: list[Any] = []
    bottomless.append(bottomless)
    with pytest.raises(ContractError, match="deep"):
        encode_job(job(env_args={"x": bottomless}))
