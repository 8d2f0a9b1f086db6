"""Decodes the ids of a byte-level vocabulary without the tokenizer: the bytes of the tokens, side by side.

It is only used where it gives the tokenizer's texts: for every id there is, beside ids that do not belong beside it.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rollq.job import Json
from rollq_worker.tokens.encoders.byte_level import alphabet

if TYPE_CHECKING:
    import tokenizers

_ROWS = 4001
"""Number of texts that a proof compares. Together they hold each id once."""
_KEPT = 20_000
"""Number of tokens whose bytes are kept as objects, up to 2 MB: more than texts of one kind use."""


class _Tokens(dict[int, bytes]):
    """The bytes of the tokens that were decoded lately; looking them up in the row takes six times as long."""

    def __init__(self, row: bytes, ends: array[int]) -> None:
        self._row, self._ends = row, ends

    def __missing__(self, id: int) -> bytes:
        if id + 1 >= len(self._ends):
            return b""
        if len(self) >= _KEPT:
            self.clear()
        token = self[id] = self._row[self._ends[id] : self._ends[id + 1]]
        return token


class ByteDecoder:
    """The bytes of every token, in one row: a megabyte for 150,000 tokens."""

    def __init__(self, tokens: Mapping[int, bytes], special: Collection[int]) -> None:
        self._special = frozenset(special)
        ends, row = array("I", [0]), bytearray()
        for id in range(1 + max(tokens)):
            row += tokens.get(id, b"")
            ends.append(len(row))
        self._tokens = _Tokens(bytes(row), ends)

    def __call__(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Bytes that are not UTF-8 become U+FFFD; ids without a token are left out."""
        if skip_special:
            ids = [id for id in ids if id not in self._special]
        return b"".join(map(self._tokens.__getitem__, ids)).decode("utf-8", "replace")


def byte_decoder(parts: Mapping[str, Json], tokenizer: tokenizers.Tokenizer) -> ByteDecoder | None:
    """The decoder for the tokenizer.json `parts`, if it gives the texts of `tokenizer`; else None."""
    if (parts.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    byte_of = alphabet()
    tokens = {id: _bytes(token, byte_of) for token, id in parts["model"]["vocab"].items()}
    added = tokenizer.get_added_tokens_decoder()
    tokens |= {id: _bytes(token.content, byte_of) for id, token in added.items()}
    special = {id for id, token in added.items() if token.special}
    ids = range(max(tokens) + 3)
    rows = [list(ids[n::_ROWS]) for n in range(_ROWS)]
    for skip in (False, True):
        left_out = special if skip else ()
        ours = [b"".join([tokens.get(id, b"") for id in row if id not in left_out]) for row in rows]
        if tokenizer.decode_batch(rows, skip_special_tokens=skip) != [row.decode("utf-8", "replace") for row in ours]:
            return None
    return ByteDecoder(tokens, special)


def _bytes(token: str, byte_of: Mapping[str, int]) -> bytes:
    try:
        return bytes([byte_of[char] for char in token])
    except KeyError:  # a token that is no row of bytes stands for its text
        return token.encode()
