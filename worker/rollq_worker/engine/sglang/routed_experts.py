"""Reads the routed experts in a reply: 32-bit ids in base64, for the tokens from
`routed_experts_start_len` on.

The invariant: the result has a row for each requested token but the last one sampled, of the shape
that the job names, and every id is an expert's. SGLang reports no shape.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from rollq.errors import EngineBreach, EngineFailure
from rollq.trajectory_extras import ExpertShape, Extra
from rollq_worker.protocols import Routing

FLAG = "--enable-return-routed-experts"
"""SGLang's flag without which a reply has none, whatever was asked."""
FIELD = "routed_experts"
ID_BYTES = 4


def read_routed_experts(
    meta: Mapping[str, Any],
    routing: Routing,
    key: str,
    length: int,
) -> Extra:
    """The part in a reply's `meta_info`, for a request of the job `key` that makes its trace
    `length` tokens long.

    Raises EngineFailure when there is none, EngineBreach when it is another than was requested.
    """
    text = meta.get(FIELD)
    shape = routing.shape
    if text is None:
        raise EngineFailure(
            f"{key}: the engine reports no routed experts: start SGLang with {FLAG}. sglang-router "
            "drops the wish for them; smg does not"
        )
    where = f"{key}: the engine's routed experts"
    try:
        ids = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as e:
        raise EngineBreach(f"{where} are not base64: {e}") from e
    rows = length - 1 - routing.start
    width = shape.layers * shape.top_k
    if len(ids) != rows * width * ID_BYTES:
        width_here, rest = divmod(len(ids), rows * ID_BYTES)
        if not rest:
            have = f"{width_here} a token"
        else:
            have = f"{len(ids) // ID_BYTES} for {rows} tokens"
        raise EngineBreach(
            f"{where} are {have}, and the job says {shape.layers} layers x top {shape.top_k} = "
            f"{width}"
        )
    return shape.part(_compact(ids, shape, where))


def _compact(ids: bytes, shape: ExpertShape, where: str) -> bytes:
    """The ids in the type of the shape. Slices keep all loops over ids in C."""
    low, high, *rest = (ids[byte::ID_BYTES] for byte in range(ID_BYTES))
    if any(map(any, rest)):
        raise EngineBreach(f"{where} have an id that is not an expert's: negative or above 65535")
    if shape.dtype == "uint8":
        highest = 256 if any(high) else max(low)
        data = low
    else:
        both = bytearray(2 * len(low))
        both[0::2] = low
        both[1::2] = high
        data = bytes(both)
        numbers = array("H", data)
        if sys.byteorder == "big":
            numbers.byteswap()
        highest = max(numbers)
    if highest >= shape.experts:
        if shape.dtype == "uint8" and highest == 256:
            number = "above 255"
        else:
            number = str(highest)
        raise EngineBreach(
            f"{where} name expert {number}, and the job says {shape.experts} experts"
        )
    _check_captured(data, shape, where)
    return data


def _check_captured(data: bytes, shape: ExpertShape, where: str) -> None:
    """A forward pass picks different experts in a layer, so a row of nothing but 0 was never
    written.
    """
    empty = bytes(shape.row_bytes)
    if shape.top_k < 2 or empty not in data:
        return
    for at in range(0, len(data), len(empty)):
        if data[at : at + len(empty)] == empty:
            row = at // len(empty)
            raise EngineBreach(
                f"{where} were not recorded: row {row} has nothing but 0, as no forward pass "
                "writes it"
            )
