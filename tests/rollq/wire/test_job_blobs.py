"""Jobs on the wire: golden bytes, the digest, and refusals by name."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import ContractError
from rollq.job import NAME, Budget, Job, Purpose
from rollq.ledger.records import sample_of
from rollq.trajectory import Header
from rollq.wire import codec
from rollq.wire.codec import decode_header, decode_job, encode_header, encode_job, job_digest
from tests.rollq.routed_experts import ASKED
from tests.rollq.samples import job


def test_golden_job() -> None:
    assert encode_job(job(seq=3)).hex() == (
        "dc0016" "02" "a36a6f62"  # array of 22: schema 2, "job"
        "a172" "a167" "00"  # run, group, sample
        "a473686f70" "a5747261696e" "01" "80"  # env, split, task, env_args
        "ac746f6f6c2d63616c6c696e67" "80"  # agent, agent_args
        "81a46b696e64a87363726970746564" "80"  # user, sampling
        "941ecd8000cd0400cb409c200000000000"  # budget
        "a5747261696e" "00" "02" "00" "a46b656570"  # purpose, seed, size, min_viable, history
        "a5726f6c6c71" "80" "03"  # queue, labels, seq
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
    assert job_digest(job()).hex() == "b7d2b5e0df9cc90ffdaa0504e09f3574"


@pytest.mark.parametrize(
    ("later", "others"),
    [
        ({"spare": 3}, [{"spare": 1}]),
        (
            {"template_kwargs": {"enable_thinking": False}},
            [{"template_kwargs": {"enable_thinking": 0}}],
        ),
        ({"routed_experts": ASKED}, [{"routed_experts": {**ASKED, "layers": 3}}]),
    ],
)
def test_a_later_field_is_behind_the_others(
    later: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    made = job(size=2, seq=4, **later)
    fields = msgpack.unpackb(encode_job(made))
    assert (len(fields), fields[-1]) == (23, later)
    assert decode_job(encode_job(made)) == made
    assert (
        len(
            {
                job_digest(one)
                for one in (made, job(size=2), *(replace(made, **other) for other in others))
            }
        )
        == 3
    )


def test_a_later_field_is_left_out_where_it_has_its_default_and_only_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(msgpack.unpackb(encode_job(job()))) == 22
    monkeypatch.setitem(codec._LATER, "spare", 2)  # a field whose default is not 0
    assert len(msgpack.unpackb(encode_job(job(spare=2)))) == 22
    assert decode_job(encode_job(job(spare=0))) == job(spare=0)
    assert msgpack.unpackb(encode_job(job(spare=0)))[-1] == {"spare": 0}


@pytest.mark.parametrize(
    "later", [{}, {"spares": 1}, {"spare": -1}, {"spare": 1, "other": 2}, [], 3, None]
)
def test_later_fields_that_are_not_known_are_refused(later: object) -> None:
    with pytest.raises(ContractError, match="r/g/0"):
        sample_of(msgpack.packb([*msgpack.unpackb(encode_job(job())), later]), "r/g/0")


def test_another_job_is_refused() -> None:
    with pytest.raises(ContractError, match="r/h/0"):
        sample_of(encode_job(job()), "r/h/0")


@pytest.mark.parametrize("at", range(2, 22))
def test_a_job_with_a_wrong_field_is_refused_by_name(at: int) -> None:
    fields = msgpack.unpackb(encode_job(job()))
    fields[at] = -1.5
    with pytest.raises(ContractError, match="r/g/0"):
        sample_of(msgpack.packb(fields), "r/g/0")


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
