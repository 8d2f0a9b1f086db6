"""A faster encoder for a BPE: tiktoken with a tokenizer's own words and order of merges.

It is only used where it gives the tokenizer's ids. The kinds of tokenizers that it can stand for are known
(`byte_level`, `sentence_piece`), and both encoders must agree on a corpus made of the vocabulary itself. It does not
know added tokens, except for rows of white space.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rollq_worker.tokens.encoders.byte_level import byte_level
from rollq_worker.tokens.encoders.corpus import corpus
from rollq_worker.tokens.encoders.recipe import Recipe
from rollq_worker.tokens.encoders.sentence_piece import sentence_piece

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger(__name__)

Encode = Callable[[str], Sequence[int]]
MAX_LENGTH = 100_000
"""Longest text in characters. Longer texts go to the tokenizer, whose regular expressions take any length."""
_SEVERAL = -1
_made: dict[str, Encode | None] = {}


def fast_encoder(spec: bytes, tokenizer: tokenizers.Tokenizer) -> Encode | None:
    """An encoder that gives the ids of `tokenizer`; None when no encoder gives them.

    `spec` is the tokenizer.json, and `tokenizer` the same without added tokens other than white space. Texts must not
    hold surrogates. Costs about a second of CPU for a vocabulary of 200,000, once for each `spec`.
    """
    key = hashlib.sha256(spec).hexdigest()
    if key not in _made:
        _made[key] = _make(spec, tokenizer)
    return _made[key]


def _make(spec: bytes, tokenizer: tokenizers.Tokenizer) -> Encode | None:
    parts = json.loads(spec)
    recipe = byte_level(parts, tokenizer) or sentence_piece(parts, tokenizer)
    core = _tiktoken(recipe) if recipe else None
    if recipe is None or core is None:
        return None
    prepare = recipe.prepare

    def encode(text: str) -> Sequence[int]:
        prepared = prepare(text)
        if prepared is None:
            ids: Sequence[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
            return ids
        return core(prepared)

    if not _agree(encode, tokenizer, list(corpus(recipe.tokens))):
        log.warning("the fast encoder differs from this tokenizer and is not used")
        return None
    return encode


def _agree(encode: Encode, tokenizer: tokenizers.Tokenizer, texts: list[str]) -> bool:
    own = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    try:
        return [one.ids for one in own] == [encode(text) for text in texts]
    except BaseException as e:
        if type(e).__name__ == "PanicException":  # tiktoken cannot take a pattern that matches nothing
            return False
        raise


def _tiktoken(recipe: Recipe) -> Encode | None:
    try:
        import tiktoken
    except ModuleNotFoundError:
        return None
    single = [ids[0] if len(ids) == 1 else _SEVERAL for ids in recipe.tokens.values()]
    by_id = len(set(single)) == len(single) and all(a < b for a, b in pairwise(single[256:]))
    by_id = by_id and _SEVERAL not in single
    ranks = dict(zip(recipe.tokens, single if by_id else range(len(single)), strict=True))
    try:
        encoding = tiktoken.Encoding("rollq", pat_str=recipe.pattern, mergeable_ranks=ranks, special_tokens={})
    except ValueError as e:  # a pattern in another dialect of regular expressions
        log.info("the fast encoder cannot use this tokenizer's pattern: %s", e)
        return None
    return encoding.encode_ordinary if by_id else _translated(encoding.encode_ordinary, recipe, single)


def _translated(encode: Encode, recipe: Recipe, single: Sequence[int]) -> Encode:
    """An encoder whose ranks are not the vocabulary's ids."""
    several = dict(enumerate(recipe.tokens.values()))

    def translate(text: str) -> Sequence[int]:
        ranks = encode(text)
        ids = [single[rank] for rank in ranks]
        return [id for rank in ranks for id in several[rank]] if _SEVERAL in ids else ids

    return translate
