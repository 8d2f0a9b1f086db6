"""A trajectory's extra arrays as blobs, one each, so that a reader fetches only those it asks for
(docs/wire.md).
"""

import zlib
from dataclasses import replace

from rollq.errors import ContractError
from rollq.trajectory_extras import Extra
from rollq.wire.blob import (
    MAX_UNPACKED,
    SCHEMA,
    join_planes,
    pack,
    pack_bytes,
    split_planes,
    unpack,
    unpack_bytes,
)


def encode_extra(extra: Extra, where: str) -> bytes:
    """The array's blob. Raises ContractError."""
    if len(extra.data) > MAX_UNPACKED:
        raise ContractError(
            f"{where}: an extra of {len(extra.data)} bytes: at most {MAX_UNPACKED} are kept"
        )
    data = pack_bytes(split_planes(extra.data, extra.itemsize))
    return pack([SCHEMA, "extra", extra.dtype, list(extra.shape), extra.itemsize, data], where)


def decode_extra(blob: bytes, where: str) -> Extra:
    """The array in a blob. Raises UnknownSchema, ContractError."""
    dtype, shape, itemsize, data = unpack(blob, "extra", 4, where)
    try:
        planes = Extra(dtype=dtype, shape=shape, data=unpack_bytes(data))
        if itemsize != planes.itemsize:
            raise ValueError(f"entries of {planes.itemsize} bytes, and it says {itemsize}")
        return replace(planes, data=bytes(join_planes(planes.data, planes.itemsize)))
    except ContractError as e:
        raise ContractError(f"{where}: {e}") from e
    except (TypeError, ValueError, zlib.error) as e:
        raise ContractError(f"{where}: unreadable extra: {type(e).__name__}: {e}") from e
