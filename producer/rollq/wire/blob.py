"""The parts of blobs: msgpack arrays with a version and a kind, buffers of numbers, packed texts.

The invariant: what is read equals what was written, or a ContractError says where. It knows nothing
of jobs and events.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import contextlib
import math
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NoReturn

import msgpack

from rollq.errors import ContractError, UnknownSchema
from rollq.job import Json

SCHEMA = 1
"""Version of the schema: the first element of every blob."""
DIGEST = 16
"""Number of bytes of a digest: of a job's content, or of a prompt that samples share."""
COMPRESSED_FROM = 512
"""Bytes of logprobs or texts from which on they are compressed, if that makes them shorter. To
begin a stream costs as much as 200 bytes of one, so what a usual turn samples is not compressed.
"""
IDS_COMPRESSED_FROM = 2048
"""The same for ids."""
SHARED_FROM = 4096
"""Ids and texts of at least this many bytes are often those of a sibling: the same prompt and
tools.
"""
MOST_SHARED = 64
"""Number of such ids and texts whose packed or unpacked form is kept, in each direction."""
MAX_UNPACKED = 256 << 20
"""Most bytes that ids, logprobs or texts may unpack to; more is a bomb, not a conversation."""
MAX_DEPTH = 64
"""Deepest nesting of a job's own mappings."""
BIG_INT = 1
"""msgpack extension: a whole number beyond 64 bits (a policy may write one), two's complement,
little-endian.
"""

_SWAP = sys.byteorder == "big"
_SIMPLE = (bool, type(None))


def plain(value: Json, where: str, depth: int = 0) -> Json:
    """A copy of a JSON value in lists and dicts. Raises ContractError for other values."""
    if depth > MAX_DEPTH:
        raise ContractError(f"{where}: nested more than {MAX_DEPTH} deep")
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # an enum's own str() is another text
    if isinstance(value, int | float):
        return _plain_number(value, where)
    if isinstance(value, Mapping):
        copy = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ContractError(f"{where}: the key {key!r} is not a string")
            copy[str.__str__(key)] = plain(item, where, depth + 1)
        return copy
    if isinstance(value, list | tuple):
        return [plain(item, where, depth + 1) for item in value]
    raise ContractError(f"{where}: {value!r} ({type(value).__name__}) is not JSON")


def _plain_number(value: float, where: str) -> float:
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ContractError(f"{where}: {value} does not fit in 64 bits")
        return int(value)
    if not math.isfinite(value):
        raise ContractError(f"{where}: {value!r} is not JSON")
    return float(value)


def pack(value: Any, where: str) -> bytes:
    """The value as msgpack. Raises ContractError for what msgpack cannot hold."""
    try:
        # Most entries need less than 4 kB. msgpack's own buffer of 256 kB costs more than the
        # packing.
        packer = msgpack.Packer(default=_pack_other, unicode_errors="surrogatepass", buf_size=4096)
        return bytes(packer.pack(value))
    except (TypeError, ValueError, OverflowError) as e:
        raise ContractError(f"{where}: cannot be encoded: {type(e).__name__}: {e}") from e


def _pack_other(value: Any) -> Any:
    """Packs what msgpack does not know: mappings and sequences of other types, and large whole
    numbers.
    """
    if isinstance(value, int):
        return msgpack.ExtType(
            BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        )
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _unpack_ext(code: int, data: bytes) -> int:
    if code != BIG_INT:
        raise ValueError(f"unknown msgpack extension {code}")
    return int.from_bytes(data, "little", signed=True)


def heading(blob: bytes) -> tuple[Any, Any]:
    """Version and kind, None where they are missing. The rest may be in a form that only that
    version knows.
    """
    unpacker = msgpack.Unpacker(read_size=64, max_buffer_size=64)
    unpacker.feed(blob[:64])
    version = kind = None
    with contextlib.suppress(Exception):  # msgpack's own errors share no base
        unpacker.read_array_header()
        version = unpacker.unpack()
        kind = unpacker.unpack()
    return version, kind


def check_version(blob: bytes, where: str) -> None:
    """Raises UnknownSchema for the blob of another version. Bytes that are not a blob pass."""
    version, kind = heading(blob)
    if version == SCHEMA or type(version) is not int or type(kind) is not str:
        return
    raise UnknownSchema(
        f"{where}: schema {version}, and this rollq reads schema {SCHEMA}: use the rollq that "
        "wrote it"
    )


def unpack(blob: bytes, kind: str, size: int | None, where: str) -> list[Any]:
    """The fields of a blob, checked to be `size` fields after version and kind. With None the blob
    is an event, whose fields include version and kind. Raises UnknownSchema for another version's
    blob, whatever else is in it.
    """
    try:
        fields = msgpack.unpackb(blob, ext_hook=_unpack_ext, unicode_errors="surrogatepass")
    except Exception as e:  # msgpack's own errors share no base, and some print empty
        check_version(blob, where)
        raise ContractError(f"{where}: unreadable {kind}: {type(e).__name__}: {e}") from e
    if type(fields) is not list or not fields:
        raise ContractError(
            f"{where}: unreadable {kind}: not an array that starts with the schema's version"
        )
    if type(fields[0]) is not int or fields[0] != SCHEMA:
        check_version(blob, where)
        wrong(where, f"schema of a {kind}", fields[0])
    if size is None:
        return fields
    if len(fields) != size + 2 or fields[1] != kind:
        raise ContractError(
            f"{where}: {str(fields[1:2])[:80]} with {len(fields)} fields is not a {kind}"
        )
    return fields[2:]


def unpack_each(data: bytes) -> list[Any]:
    """The values that were packed one behind the other."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    return list(unpacker)


def dump(buffer: Iterable[Any], typecode: str, where: str) -> bytes:
    """The buffer as little-endian u32 or f32."""
    if not isinstance(buffer, array) or buffer.typecode != typecode:
        raise ContractError(f"{where}: must be an array({typecode!r}), not {type(buffer).__name__}")
    if _SWAP:
        buffer = array(typecode, buffer)
        buffer.byteswap()
    return buffer.tobytes()


def load(typecode: str, raw: bytes | bytearray) -> array[Any]:
    """The numbers (u32 or f32) in the bytes. Raises ValueError when the last number is cut off."""
    buffer = array(typecode, raw)
    if _SWAP:
        buffer.byteswap()
    return buffer


def dump_ids(ids: Iterable[Any], where: str) -> bytes:
    """Token ids, packed in planes. Ids are small, so the last planes are left out where they are
    zero. Some ids are frequent, so each plane of many ids is worth compressing, and the four bytes
    of one number are not.
    """
    raw = dump(ids, "I", where)
    if len(raw) >= IDS_COMPRESSED_FROM:
        return _pack_shared(split_planes(raw, 4))
    zeros = bytes(len(raw) // 4)
    if raw[3::4] != zeros:
        return b"\0" + split_planes(raw, 4)
    first, second, third = raw[::4], raw[1::4], raw[2::4]
    if third != zeros:
        return b"\3" + first + second + third
    return b"\2" + first + second


def load_ids(packed: bytes) -> array[int]:
    """The ids that `dump_ids` packed. Raises ValueError or zlib.error."""
    if packed[:1] in (b"\2", b"\3"):
        planes = packed[0]
        count, cut = divmod(len(packed) - 1, planes)
        if cut:
            raise ValueError(f"{len(packed) - 1} bytes are not {planes} planes")
        raw = bytearray(4 * count)
        for plane in range(planes):
            start = 1 + plane * count
            raw[plane::4] = packed[start : start + count]
        return load("I", raw)
    if len(packed) >= SHARED_FROM:
        return load("I", _read_planes(packed))
    return load("I", join_planes(unpack_bytes(packed), 4))


@lru_cache(MOST_SHARED)
def _read_planes(packed: bytes) -> bytes:
    return bytes(join_planes(unpack_bytes(packed), 4))


def split_planes(raw: bytes, size: int) -> bytes:
    """Numbers of `size` bytes each as planes: the first bytes of all numbers, then all second
    bytes, and so on.
    """
    return b"".join(raw[byte::size] for byte in range(size))


def join_planes(planes: bytes, size: int) -> bytearray:
    """Reverses `split_planes`. Raises ValueError."""
    raw = bytearray(len(planes))
    count = len(planes) // size
    for byte in range(size):
        raw[byte::size] = planes[byte * count : (byte + 1) * count]
    return raw


def pack_texts(texts: list[Any], where: str) -> bytes:
    """The texts, packed."""
    return _pack_shared(pack(texts, where))


def pack_bytes(data: bytes) -> bytes:
    """A byte that says how the data is packed (0: as it is, 1: by zlib), then the data in the
    shorter form.
    """
    if len(data) < COMPRESSED_FROM:
        return b"\0" + data
    # At level 6 a prompt would take three times as long and be a twentieth shorter. 13 and 6 mean
    # 64 kB of memory, a quarter of the default: most streams are shorter than 2 kB.
    deflate = zlib.compressobj(1, zlib.DEFLATED, 13, 6)
    stream = deflate.compress(data) + deflate.flush()
    if len(stream) < len(data):
        return b"\1" + stream
    return b"\0" + data


def _pack_shared(data: bytes) -> bytes:
    return pack_bytes(data) if len(data) < SHARED_FROM else _packed_before(data)


_packed_before = lru_cache(MOST_SHARED)(pack_bytes)


def unpack_bytes(packed: bytes) -> bytes:
    """Reverses `pack_bytes`. Raises ValueError or zlib.error."""
    if packed[:1] == b"\0":
        return packed[1:]
    if packed[:1] != b"\1":
        raise ValueError(f"unknown packing {packed[:1]!r}")
    inflate = zlib.decompressobj()
    data = inflate.decompress(packed[1:], MAX_UNPACKED)
    if not inflate.eof or inflate.unused_data:
        raise ValueError("not one whole zlib stream")
    return data


def _read_texts(raw: bytes, where: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The texts by field name. Raises ContractError unless they are of these types."""
    try:
        packed = unpack_bytes(raw)
        values = msgpack.unpackb(
            packed, ext_hook=_unpack_ext, unicode_errors="surrogatepass", strict_map_key=False
        )
    except Exception as e:  # msgpack's own errors share no base, and some print empty
        raise ContractError(f"{where}: unreadable texts: {type(e).__name__}: {e}") from e
    if type(values) is not list or len(values) != len(kinds):
        raise ContractError(f"{where}: the texts are not {', '.join(kinds)}")
    texts = {}
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        if not isinstance(value, kind):
            wrong(where, name, value)
        texts[name] = value
    return texts


def defer(raw: Any, where: str, **kinds: Any) -> Callable[[], dict[str, Any]]:
    """A function that reads the texts, by the name and the type of each."""
    if type(raw) is not bytes:
        wrong(where, "texts", raw)
    return partial(_read_texts, raw, where, kinds)


def wrong(where: str, what: str, value: Any) -> NoReturn:
    """Raises the ContractError for a value of a wrong type or form."""
    raise ContractError(f"{where}: wrong {what}: {str(value)[:200]}")
