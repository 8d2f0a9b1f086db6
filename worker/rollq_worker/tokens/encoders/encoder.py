"""A faster encoder for a BPE: tiktoken with a tokenizer's own words and order of merges.

It is only used where it gives the tokenizer's ids. The kinds of tokenizers that it can stand for are known
(`byte_level`, `sentence_piece`), and both encoders must agree on a corpus made of the vocabulary itself. It does not
know added tokens, except for rows of white space.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from rollq_worker.tokens.encoders.ascii_words import ascii_words
from rollq_worker.tokens.encoders.byte_decoder import ByteDecoder, byte_decoder
from rollq_worker.tokens.encoders.byte_level import byte_level
from rollq_worker.tokens.encoders.recipe import Recipe
from rollq_worker.tokens.encoders.sentence_piece import sentence_piece

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger(__name__)

Encode = Callable[[str], Sequence[int]]
MAX_LENGTH = 100_000
"""Longest text in characters. Longer texts go to the tokenizer, whose regular expressions take any length."""
_SEVERAL = -1
"""In a list of ids, in place of a token that stands for several."""
_TEXTS = (
    "Hello, world! It's 12:45, isn't it? We'll see; they've said I'd better.",
    '{"order_id": "#W2378156", "items": [{"price": 1034.99, "options": {"a-b_c": null}}]}\n\n\t- one\r\n  two   ',
    "def f(x):\n    return x**2  # done.\n\n\n\nCamelCase snake_case 3.14e-10 \\u00e9 <b>&amp;</b>",
    "Élève naïf, Straße, İstanbul, ﬁn, Ångström, e\u0301; Привет, мир! Ωμέγα",
    "marks of several ages in a row: \u2dfc\u0eba \u0352\u07fd \u1dee\u08d3 \u08ca\ufe28 a\u0316\u0301 \u11938\u0304",
    "你好，世界！こんにちは世界。안녕하세요 세계 مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดี ١٢٣ ४५६",
    "👩‍👩‍👧‍👦🏳️‍🌈🙂\u200b\ufeff\u00a0\u2028\u3000 \x00\x01\x7f ～ ½ Ⅷ ²",
    "a \x00\x00b\x01 \u0378\u0378 \ue000 1\x00 2  3   x  世  界\t\t・ ・\n  \n\r\n <b> </b>  ▁ ▁▁x",
    "a" * 700 + " " * 300 + "\n" * 50 + "1" * 99 + "\t" * 40,
    *(first.join(map(chr, range(128))) for first in ("", " ", "a", "1", "'", "\n", ".")),
    "".join(Random(0).choices(" \n\r\t\v\f\x1c\x1f\0'aZsStTlLrReEvVdDmM019.,$^_-/+~\\\"[]{}", k=5000)),
)
"""Texts on which two encoders of one vocabulary might differ."""


@dataclass(frozen=True, slots=True)
class Fast:
    """What stands for a tokenizer."""

    encode: Encode
    """Plain text to ids. Texts must not hold surrogates."""
    decode: ByteDecoder | None
    """All ids to text; None where only the tokenizer itself can."""


_made: dict[str, Fast | None] = {}


def fast_encoder(
    spec: bytes, tokenizer: tokenizers.Tokenizer, full: tokenizers.Tokenizer, encode_slowly: Encode
) -> Fast | None:
    """What gives the ids of `tokenizer` and the texts of `full`; None when no encoder gives the ids.

    `spec` is the tokenizer.json, `full` the same, and `tokenizer` the same without added tokens other than white space.
    `encode_slowly` encodes as `tokenizer` does, which is not kept. Costs about a second of CPU for a vocabulary of
    200,000, once for each `spec`.
    """
    key = hashlib.sha256(spec).hexdigest()
    if key not in _made:
        _made[key] = _make(spec, tokenizer, full, encode_slowly)
    return _made[key]


def _make(
    spec: bytes, tokenizer: tokenizers.Tokenizer, full: tokenizers.Tokenizer, encode_slowly: Encode
) -> Fast | None:
    try:
        import tiktoken  # noqa: F401 - without it there is nothing to prove
    except ModuleNotFoundError:
        return None
    parts = json.loads(spec)
    recipe = byte_level(parts, tokenizer) or sentence_piece(parts, tokenizer)
    core = _tiktoken(recipe) if recipe else None
    if recipe is None or core is None:
        return None
    prepare, core = recipe.prepare, ascii_words(recipe.pattern, core)

    def encode(text: str) -> Sequence[int]:
        prepared = prepare(text)
        return encode_slowly(text) if prepared is None else core(prepared)

    if not _agree(encode, tokenizer, list(_corpus(recipe.tokens))):
        log.warning("the fast encoder differs from this tokenizer and is not used")
        return None
    return Fast(encode, byte_decoder(parts, full))


def _corpus(tokens: Iterable[bytes]) -> Iterator[str]:
    """Many scripts and awkward rows, and a vocabulary's own tokens side by side."""
    yield from _TEXTS
    texts = [token.decode(errors="ignore") for token in tokens]
    for step in (37, 41):
        some = texts[::step]
        yield from ("".join(some[n : n + 50]) for n in range(0, len(some), 50))


def _agree(encode: Encode, tokenizer: tokenizers.Tokenizer, texts: list[str]) -> bool:
    own = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    try:
        return [one.ids for one in own] == [list(encode(text)) for text in texts]
    except BaseException as e:
        if type(e).__name__ == "PanicException":  # tiktoken cannot take a pattern that matches nothing
            return False
        raise


def _tiktoken(recipe: Recipe) -> Encode | None:
    import tiktoken

    single = array("q", [ids[0] if len(ids) == 1 else _SEVERAL for ids in recipe.tokens.values()])
    by_id = len(set(single)) == len(single) and all(a < b for a, b in pairwise(single[256:]))
    by_id = by_id and _SEVERAL not in single
    ranks = dict(zip(recipe.tokens, single if by_id else range(len(single)), strict=True))
    try:
        encoding = tiktoken.Encoding("rollq", pat_str=recipe.pattern, mergeable_ranks=ranks, special_tokens={})
    except ValueError as e:  # a pattern in another dialect of regular expressions
        log.info("the fast encoder cannot use this tokenizer's pattern: %s", e)
        return None
    ranks.clear()  # the encoding keeps them for pickling only, and they are 20 MB
    return encoding.encode_ordinary if by_id else _translated(encoding.encode_ordinary, recipe, single)


def _translated(encode: Encode, recipe: Recipe, single: array[int]) -> Encode:
    """An encoder whose ranks are not the vocabulary's ids."""
    several = {rank: ids for rank, ids in enumerate(recipe.tokens.values()) if len(ids) > 1}

    def translate(text: str) -> Sequence[int]:
        ranks = encode(text)
        ids = [single[rank] for rank in ranks]
        return [id for rank in ranks for id in several.get(rank, (single[rank],))] if _SEVERAL in ids else ids

    return translate
