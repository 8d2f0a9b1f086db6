"""Decodes the ids of a byte-level vocabulary without the tokenizer: the bytes of the tokens, side by side.

It is only used where it gives the tokenizer's texts: for every id there is, beside ids that do not belong beside it.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from rollq.job import Json
from rollq_worker.tokens.encoders.byte_level import spell

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
        in_order = [tokens.get(id, b"") for id in range(1 + max(tokens))]
        self._tokens = _Tokens(b"".join(in_order), array("I", accumulate(map(len, in_order), initial=0)))

    def __call__(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Bytes that are not UTF-8 become U+FFFD; ids without a token are left out."""
        if skip_special:
            ids = [id for id in ids if id not in self._special]
        return b"".join(map(self._tokens.__getitem__, ids)).decode("utf-8", "replace")


def byte_decoder(parts: Mapping[str, Json], tokenizer: tokenizers.Tokenizer) -> ByteDecoder | None:
    """The decoder for the tokenizer.json `parts`, if it gives the texts of `tokenizer`; else None."""
    if (parts.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    added = tokenizer.get_added_tokens_decoder()
    texts = {id: token for token, id in parts["model"]["vocab"].items()}
    texts |= {id: token.content for id, token in added.items()}
    # A token that is no row of bytes stands for its text.
    spelled = zip(texts.items(), spell([*texts.values()]), strict=True)
    tokens = {id: text.encode() if spelling is None else spelling for (id, text), spelling in spelled}
    special = {id for id, token in added.items() if token.special}
    ids = range(max(tokens) + 3)
    rows = [list(ids[n::_ROWS]) for n in range(_ROWS)]
    for skip in (False, True):
        left_out = special if skip else ()
        if skip:
            rows = [row for row in rows if not added.keys().isdisjoint(row)]  # no other token can be left out
        ours = [b"".join([tokens.get(id, b"") for id in row if id not in left_out]) for row in rows]
        if tokenizer.decode_batch(rows, skip_special_tokens=skip) != [row.decode("utf-8", "replace") for row in ours]:
            return None
    return ByteDecoder(tokens, special)
