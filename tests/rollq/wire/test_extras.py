"""Arrays beside a journal: what is read equals what was written, and a journal's own blobs do not
know of them.
"""

import gc
import random
import tracemalloc
from array import array
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import ContractError, UnknownSchema
from rollq.training.arrays import array_of
from rollq.trajectory_extras import Extra
from rollq.wire.blob import SCHEMA, pack, pack_bytes
from rollq.wire.extras import decode_extra, encode_extra
from tests.rollq.samples import decoded, encoded, trajectory

EXPERTS = Extra(dtype="int32", shape=(2, 3), data=array("i", [1, 7, 255, 0, 300, -1]).tobytes())


@st.composite
def extras(draw: st.DrawFn) -> Extra:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    size = prod(shape) * draw(st.sampled_from([1, 2, 3, 4, 8]))
    return Extra(
        dtype=draw(st.text(min_size=1)),
        shape=shape,
        data=draw(st.binary(min_size=size, max_size=size)),
    )


@given(extras())
def test_what_is_read_equals_what_was_written(extra: Extra) -> None:
    """Also for a dtype that this rollq does not know."""
    assert decode_extra(encode_extra(extra, "job r/g/0"), "job r/g/0") == extra


def test_large_arrays_are_not_kept() -> None:
    """Of what is written, prompts are kept for their siblings. A turn's arrays are megabytes, and
    have none.
    """
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(4):
            encode_extra(
                Extra(
                    dtype="uint8", shape=(1 << 20,), data=random.Random(number).randbytes(1 << 20)
                ),
                "",
            )
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20


def test_the_bytes_are_pinned() -> None:
    assert encode_extra(replace(EXPERTS, shape=(6,), data=bytes(range(24))), "").hex() == (
        "9601a56578747261a5696e7433329106"  # 1, extra, int32, [6]
        "04c41900"  # 4 bytes each, 25 bytes, not compressed
        "0004080c1014" + "0105090d1115" + "02060a0e1216" + "03070b0f1317"
    )


def test_numpy_reads_it() -> None:
    assert array_of(EXPERTS).tolist() == [[1, 7, 255], [0, 300, -1]]
    assert array_of(EXPERTS).dtype == np.dtype("<i4")
    with pytest.raises(ContractError, match="numpy has no dtype 'float3'"):
        array_of(replace(EXPERTS, dtype="float3"))
    with pytest.raises(ContractError, match="has 4 bytes, one of int64 8"):
        array_of(replace(EXPERTS, dtype="int64"))


def test_a_journal_has_the_same_bytes_with_extras() -> None:
    """So a reader that knows nothing of extras reads it as before, and this one reads journals that
    have none.
    """
    plain = trajectory()
    assert encoded(replace(plain, extras={"routed_experts": EXPERTS})) == encoded(plain)
    assert decoded(encoded(plain)).extras == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": (0,)}, "lengths of at least 1"),
        ({"shape": ()}, "lengths of at least 1"),
        ({"shape": 6}, "lengths of at least 1, not 6"),
        ({"data": bytearray(24)}, "the data of an extra is bytes, not bytearray"),
        ({"shape": (5,)}, r"an extra of shape \(5,\) cannot be 24 bytes"),
        ({"dtype": ""}, "the dtype of an extra is a name"),
    ],
)
def test_what_is_no_array_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        replace(EXPERTS, **changes)  # type: ignore[arg-type]


def test_damaged_blobs_are_refused() -> None:
    blob = encode_extra(EXPERTS, "job r/g/0")
    for damaged in (b"", blob[:-1], blob + b"\0", blob.replace(b"\x92\x02\x03", b"\x92\x02\x05")):
        with pytest.raises(ContractError, match="job r/g/0"):
            decode_extra(damaged, "job r/g/0")
    with pytest.raises(UnknownSchema):
        decode_extra(b"\x96\x03" + blob[2:], "job r/g/0")


@pytest.mark.parametrize("itemsize", [0, -1, 3, 1 << 20])
def test_entries_of_another_size_than_the_shape_says(itemsize: int) -> None:
    """They were read as zeros, or raised ZeroDivisionError."""
    blob = pack([SCHEMA, "extra", "uint16", [2, 2], itemsize, pack_bytes(b"12345678")], "")
    with pytest.raises(ContractError, match=f"job r/g/0: unreadable extra: .*it says {itemsize}"):
        decode_extra(blob, "job r/g/0")


def test_routed_experts_of_a_long_episode_are_compressed() -> None:
    """7,000 tokens, 48 layers, top 2 of 128 experts: 2.7 MB."""
    chosen = random.Random(0)
    experts = array("i", (chosen.randrange(128) for _ in range(7000 * 48 * 2)))
    extra = Extra(dtype="int32", shape=(7000, 48, 2), data=experts.tobytes())
    assert len(extra.data) == 2_688_000
    assert len(encode_extra(extra, "")) < 640_000
