"""The wire: round trips, golden bytes, and a refusal for everything else."""

from __future__ import annotations

import math
import random
import sys
import zlib
from array import array
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollq.wire.blob
from rollq.errors import ContractError, FailureClass
from rollq.events import (
    Closed,
    Event,
    Finish,
    Observed,
    Prompt,
    Replied,
    Sampled,
    Stop,
    VersionSpan,
)
from rollq.trajectory import Header, Trajectory
from rollq.wire.codec import decode_header, decode_job, encode_header, encode_job
from rollq.wire.events import decode_event, encode_event, is_observed
from tests.rollq.samples import (
    closed,
    decoded,
    encoded,
    events,
    ids,
    job,
    observed,
    prompt,
    sampled,
    trajectory,
)

# ----------------------------------------------------------------
# golden bytes


def test_golden_events() -> None:
    small = replace(prompt(1, 70000), messages=[{"role": "user"}], tools=[])
    assert encode_event(small, "r/g/0").hex() == (
        "95" "01" "a670726f6d7074"  # array of 5: schema 1, "prompt"
        # ids: 3 = three planes, all first bytes, then all second and third ones
        "c407" "03" "0170" "0011" "0001"
        # texts: 0 = as they are, [messages, tools]
        "c40f" "00" "92" "9181a4726f6c65a475736572" "90"
        "cb3ff0000000000000"  # at
    )  # fmt: skip
    assert encode_event(sampled(2, 7, version="v"), "r/g/0").hex() == (
        "9e" "01" "a773616d706c6564" "02"  # array of 14: schema 1, "sampled", turn
        "c403" "02" "0700" "c405" "00" "000000bf"  # ids: 2 = two planes; logprobs
        # spans, finish, texts [text], cached_tokens
        "9193a1760001" "a473746f70" "c405" "00" "91" "a2686d" "00"
        "cb4000000000000000" "cb0000000000000000"  # at, seconds
        "c0" "80" "c0"  # trace, asked, experts
    )  # fmt: skip
    assert encode_event(replace(closed(), info={}), "r/g/0").hex() == (
        "97" "01" "a6636c6f736564" "a4646f6e65" "cb3ff0000000000000" "c0"  # stop, reward, failure
        "c403" "00" "91" "80" "cb4010000000000000"  # texts [info], at
    )  # fmt: skip


NAMED = Prompt(ids=ids(1), messages=[], tools=[], at=1.0, model="red")
REPLIED = Replied(model="blue", request="0a", ids=ids(7), finish=Finish.STOP, text="\ud800", at=1.0)


def test_events_of_several_models() -> None:
    for event in (NAMED, REPLIED):
        assert decode_event(encode_event(event, "r/g/0"), "r/g/0") == event
    alone = replace(NAMED, model="")
    assert encode_event(NAMED, "r/g/0")[1:] == encode_event(alone, "r/g/0")[1:] + b"\xa3red"
    assert encode_event(REPLIED, "r/g/0").hex() == (
        "99" "01" "a77265706c696564" "a4626c7565" "a23061"  # "replied", model, request
        "c403" "02" "0700" "a473746f70" "c406" "00" "91" "a3eda080"  # ids, finish, texts [text]
        "cb3ff0000000000000" "cb0000000000000000"  # at, seconds
    )  # fmt: skip


def test_golden_header() -> None:
    header = Header(attempt=2, worker="w", rollq="0.1.0", template_kwargs={"k": True}, at=1.0)
    assert encode_header(header).hex() == (
        "9c" "01" "a6686561646572" "02"  # array of 12: schema 1, "header", attempt
        "a177" "a5302e312e30" "a0a0a0a0" "a46b656570"  # worker, rollq, four texts, history
        "81a16bc3" "cb3ff0000000000000"  # template_kwargs, at
    )  # fmt: skip


# ----------------------------------------------------------------
# round trips

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text()
)
shallow = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(st.text(max_size=5), scalars, max_size=3)
)
json_values = (
    shallow
    | st.lists(shallow, max_size=3)
    | st.dictionaries(st.text(max_size=5), shallow, max_size=3)
)
objects = st.dictionaries(st.text(max_size=8), json_values, max_size=4)
# A policy writes what it likes.
surrogates = st.text(st.characters(exclude_categories=()), max_size=20)
times = st.floats(0, 2e9)
bits = st.sampled_from([16, 18, 24, 32])  # as two, three and four planes
token_ids = bits.flatmap(lambda n: st.lists(st.integers(0, 2**n - 1), max_size=40)).map(
    lambda ids: array("I", ids)
)


@st.composite
def sampled_events(draw: st.DrawFn, turn: int) -> Sampled:
    tokens = draw(token_ids)
    cuts = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
    edges = [0, *cuts, len(tokens)]
    spans = [VersionSpan(draw(st.text(max_size=4)), a, b) for a, b in pairwise(edges)]
    logprob = st.floats(-100, 0, width=32)
    return Sampled(
        turn=turn,
        ids=tokens,
        logprobs=array("f", draw(st.lists(logprob, min_size=len(tokens), max_size=len(tokens)))),
        versions=tuple(spans),
        finish=draw(st.sampled_from(Finish)),
        text=draw(surrogates),
        cached_tokens=draw(st.integers(0, 10)),
        at=draw(times),
        seconds=draw(times),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    happened: list[Event] = []
    for turn in range(draw(st.integers(0, 3))):
        if not happened or draw(st.booleans()):  # another trace
            messages, tools = (
                draw(st.lists(objects, max_size=2)),
                draw(st.lists(objects, max_size=2)),
            )
            happened.append(
                Prompt(ids=draw(token_ids), messages=messages, tools=tools, at=draw(times))
            )
        happened += [draw(sampled_events(turn)) for _ in range(draw(st.integers(0, 3)))]
        happened.append(
            Observed(
                turn=turn,
                message=draw(objects),
                actions=draw(st.lists(objects, max_size=2)),
                replies=draw(st.lists(objects, max_size=2)),
                ids=draw(token_ids),
                errors=draw(st.lists(surrogates, max_size=2)),
                extra_calls=draw(st.integers(0, 3)),
                done=draw(st.booleans()),
                at=draw(times),
                seconds=draw(times),
            )
        )
    if draw(st.booleans()):
        stop = draw(st.sampled_from(Stop))
        graded = stop not in (Stop.ABORTED, Stop.FAILED)
        reward = draw(st.floats(allow_nan=False, allow_infinity=False)) if graded else None
        failure = None if graded else draw(st.sampled_from(FailureClass))
        happened.append(
            Closed(stop=stop, reward=reward, failure=failure, info=draw(objects), at=draw(times))
        )
    header = Header(
        attempt=draw(st.integers(0, 9)), worker=draw(st.text(max_size=9)), at=draw(times)
    )
    return Trajectory(job=job(env_args={"a": [1, None]}), header=header, events=happened)


@given(trajectories())
@settings(max_examples=80, deadline=None)
def test_a_trajectory_comes_back_equal(made: Trajectory) -> None:
    blobs = encoded(made)
    again = decoded(blobs)
    assert (again.job, again.header, list(again.events)) == (
        made.job,
        made.header,
        list(made.events),
    )
    assert (again.tokens, again.mask, again.logprobs) == (made.tokens, made.mask, made.logprobs)
    assert again.versions == made.versions
    assert again.messages == made.messages
    assert again.traces == made.traces
    assert (
        sum(again.traces)
        == len(again.tokens)
        == len(again.mask)
        == len(again.logprobs)
        == len(again.versions)
    )
    assert encoded(again) == blobs


def test_texts_are_compressed_when_large_and_read_when_asked_for() -> None:
    long = [{"role": "system", "content": "All work and no play. " * 1000}]
    blob = encode_event(replace(prompt(), messages=long), "r/g/0")
    assert len(blob) < 1000
    event = decode_event(blob, "r/g/0")
    with pytest.raises(AttributeError):
        object.__getattribute__(event, "messages")
    assert event.messages == long  # type: ignore[union-attr]
    assert event == replace(prompt(), messages=long)


def test_what_a_policy_may_write_survives() -> None:
    wild = {"name": "pay", "arguments": {"cents": 10**40, "note": "\ud83d", "rate": math.inf}}
    event = decode_event(encode_event(replace(observed(), actions=[wild]), "r/g/0"), "r/g/0")
    assert isinstance(event, Observed)
    assert event.actions == [wild]


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_junk_is_a_contract_error(junk: bytes) -> None:
    for decode in (decode_job, lambda b: decode_event(b, "r/g/0"), lambda b: decode_header(b)):
        with pytest.raises(ContractError):
            decode(junk)


def long_events() -> list[Event]:
    """A prompt, a sampled and an observed event that are long enough to be compressed."""
    many = array("I", range(600))
    said = [{"role": "user", "content": "All work and no play. " * 50}]
    logprobs, spans = array("f", [-1.0] * 600), [VersionSpan("1", 0, 600)]
    return [
        replace(prompt(), ids=many, messages=said),
        replace(sampled(), ids=many, logprobs=logprobs, versions=spans, text=str(said)),
        replace(observed(), ids=many, replies=said),
    ]


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_damaged_blob_is_refused_or_readable(data: st.DataObject) -> None:
    blob = bytearray(encode_event(data.draw(st.sampled_from([*events(), *long_events()])), "r/g/0"))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
    try:
        repr(decode_event(bytes(blob), "r/g/0"))  # reads the texts too
    except ContractError as e:
        assert "r/g/0" in str(e)


def test_ids_and_logprobs_are_stored_in_the_shorter_form() -> None:
    tokens, noise = (
        array("I", [1000, 2000] * 500),
        array("I", random.Random(0).sample(range(2**32), 1000)),
    )
    sure, unsure = array("f", [0.0] * 1000), array("f", [-i / 3001 for i in range(1000)])
    made = replace(
        sampled(), ids=tokens, logprobs=sure, versions=(VersionSpan("1", 0, 1000),), text=""
    )
    noisy = replace(made, ids=noise, logprobs=unsure)
    assert len(encode_event(made, "r/g/0")) < 200
    assert len(encode_event(noisy, "r/g/0")) < 8000 + 100
    assert decode_event(encode_event(noisy, "r/g/0"), "r/g/0") == noisy


def test_big_endian_hosts_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = encode_event(sampled(0, 1), "r/g/0")
    # As if this were the other kind of host.
    monkeypatch.setattr(rollq.wire.blob, "_SWAP", sys.byteorder == "little")
    foreign = decode_event(blob, "r/g/0")
    assert isinstance(foreign, Sampled)
    assert foreign.ids == ids(1 << 24)
    assert encode_event(foreign, "r/g/0") == blob


# ----------------------------------------------------------------
# refusals


def tampered(event: Event, at: int, value: Any) -> bytes:
    fields = msgpack.unpackb(encode_event(event, "r/g/0"))
    fields[at] = value
    return msgpack.packb(fields)


NAN = b"\0" + array("f", [math.nan, -1.0]).tobytes()
INF = b"\0" + array("f", [-1.0, -math.inf]).tobytes()


@pytest.mark.parametrize(
    ("blob", "word"),
    [
        (tampered(sampled(), 0, True), "schema"),
        (tampered(sampled(), 0, 200), "schema"),
        (tampered(sampled(), 1, "samples"), "not a known kind"),
        (tampered(sampled(), 1, 7), "not a known kind"),
        (tampered(sampled(), 2, "0"), "wrong"),
        (tampered(sampled(), 3, b""), "unknown packing"),
        (tampered(sampled(), 3, b"\4\0\0\0\0"), "unknown packing"),
        (tampered(sampled(), 3, b"\2\0\0\0"), "2 planes"),
        (tampered(sampled(), 3, b"\3\0\0\0\0"), "3 planes"),
        (tampered(sampled(), 3, b"\0\0\0"), "sampled"),
        (tampered(sampled(), 3, b"\1\0\0"), "sampled"),
        (tampered(sampled(), 3, b"\1" + zlib.compress(bytes(8))[:-2]), "zlib"),
        (tampered(sampled(), 3, b"\1" + zlib.compress(bytes(7))), "sampled"),
        (tampered(sampled(), 3, 7), "sampled"),
        (tampered(sampled(), 3, [7, 8]), "sampled"),
        (tampered(sampled(), 3, b"\0" + ids(7).tobytes()), "1 sampled tokens and 2 logprobs"),
        (tampered(sampled(), 4, NAN), "not finite"),
        (tampered(sampled(), 4, INF), "not finite"),
        (tampered(sampled(), 5, []), "do not tile"),
        (tampered(sampled(), 5, [["1", 0, 1]]), "do not tile"),
        (tampered(sampled(), 5, [["1", 0, 1], ["1", 0, 2]]), "do not tile"),
        (tampered(sampled(), 5, [["1", 0, 3]]), "do not tile"),
        (tampered(sampled(), 5, [["1", 0]]), "unreadable"),
        (tampered(sampled(), 5, [[1, 0, 2]]), "version span"),
        (tampered(sampled(), 6, "tired"), "tired"),
        (tampered(sampled(), 6, ["stop"]), "unreadable"),
        (tampered(sampled(), 7, "hm"), "texts"),
        (tampered(sampled(), 9, 2), "time"),
        (tampered(prompt(), 2, b"\1"), "prompt"),
        (tampered(prompt(), 3, "texts"), "texts"),
        (tampered(observed(), 6, 1), "wrong"),
        (tampered(NAMED, 5, 7), "wrong prompt"),
        (tampered(REPLIED, 2, 7), "wrong replied"),
        (tampered(REPLIED, 4, "7"), "unreadable"),
        (tampered(REPLIED, 5, "tired"), "tired"),
        (tampered(REPLIED, 7, 1), "time"),
        (tampered(closed(), 2, "bored"), "bored"),
        (tampered(closed(), 3, None), "reward"),
        (tampered(closed(), 3, True), "reward"),
        (tampered(closed(), 3, 1), "reward"),
        (tampered(closed(), 3, math.nan), "reward"),
        (tampered(closed(), 2, "failed"), "reward"),
        (tampered(closed(), 4, "fate"), "fate"),
        (encode_event(prompt(), "r/g/0") + b"\0", "unreadable"),
        (encode_event(prompt(), "r/g/0")[:-1], "unreadable"),
        (encode_job(job()), "not a known kind"),
        (b"\x91" * 5000, "unreadable"),
        (b"\x90", "schema"),
        (b"", "unreadable"),
    ],
)
def test_an_event_that_breaks_the_contract_is_refused_by_name(blob: bytes, word: str) -> None:
    with pytest.raises(ContractError, match=word) as caught:
        decode_event(blob, "r/g/0")
    assert "r/g/0" in str(caught.value)


@pytest.mark.parametrize(
    "texts",
    [
        b"",
        b"\2\x92\x90\x90",
        b"\0\x92\x90\x90\x90",
        b"\0\x91\x90",
        b"\0\x92\x80\x90",
        b"\1junk",
        b"\0" + b"\x91" * 3000,
        b"\1" + zlib.compress(b"\x92\x90\x90")[:-2],
        b"\1" + zlib.compress(b"\x92\x90\x90") + b"more",
    ],
)
def test_texts_that_cannot_be_read_are_refused_when_asked_for(texts: bytes) -> None:
    event = decode_event(tampered(prompt(), 3, texts), "r/g/0")
    with pytest.raises(ContractError, match="r/g/0"):
        event.messages  # type: ignore[union-attr]  # noqa: B018


@pytest.mark.parametrize(
    "event",
    [
        replace(prompt(), ids=[1, 2]),
        replace(prompt(), ids=array("H", [1])),
        replace(prompt(), messages=[{"content": object()}]),
        replace(sampled(), logprobs=array("d", [-1.0, -1.0])),
        replace(closed(), info={"x": {1, 2}}),
    ],
)
def test_what_has_no_form_on_the_wire_is_not_encoded(event: Event) -> None:
    with pytest.raises(ContractError, match="r/g/0"):
        encode_event(event, "r/g/0")


@pytest.mark.parametrize("at", [3, 4])
@pytest.mark.parametrize(
    ("size", "word"), [(800, "sampled tokens and"), (804, "not one whole zlib stream")]
)
def test_bombs_are_not_unpacked(
    monkeypatch: pytest.MonkeyPatch, at: int, size: int, word: str
) -> None:
    monkeypatch.setattr(rollq.wire.blob, "MAX_UNPACKED", 800)
    packed = b"\1" + zlib.compress(bytes(size))
    with pytest.raises(ContractError, match=word):
        decode_event(tampered(sampled(), at, packed), "r/g/0")
    texts = decode_event(tampered(prompt(), 3, packed), "r/g/0")
    with pytest.raises(
        ContractError, match="unreadable texts" if size > 800 else "extra bytes|ExtraData"
    ):
        texts.messages  # type: ignore[union-attr]  # noqa: B018


def test_events_out_of_order_are_refused() -> None:
    for happened in ([sampled()], [prompt(), closed(), sampled()], [closed(), closed()]):
        blobs = encoded(replace(trajectory(), events=happened))
        with pytest.raises(ContractError, match="r/g/0"):
            decoded(blobs)


def test_only_the_end_of_a_turn_is_observed() -> None:
    blobs = [encode_event(event, "r/g/0") for event in events()]
    assert [is_observed(blob) for blob in blobs] == [False, False, True, False, True, False]
