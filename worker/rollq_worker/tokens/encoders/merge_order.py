"""The order in which a byte-pair encoding makes its tokens.

A tokenizer.json ranks pairs of tokens: an encoder merges the pair that is first in the list, wherever it stands, until
no pair is left. tiktoken ranks tokens: it merges the two whose product has the lowest rank, whether or not that pair is
listed. Both come to the same tokens, for every text, when three things hold.

* A token has one place in the order. Most lists have all merges of a token side by side. Where they are apart, only one
  of them is ever used. Whatever surrounds a token, its own characters are merged in the same order, so the last merge
  is always of the same pair.
* Every token that is merged alone comes out whole. So the merge that tiktoken would make is listed.
* A token that never comes out whole is not known to tiktoken, because the tokenizer never gives it. The exception are
  models that look a whole word up before they merge (`ignore_merges`): tiktoken does that too. Then such a token stays,
  unless it ends as two parts, which tiktoken would merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rollq.job import Json

if TYPE_CHECKING:
    from tokenizers.models import BPE


def tokens_in_order(model: Mapping[str, Json], bpe: BPE) -> list[str] | None:
    """The tokens of more than one character, in the order in which they are made; None where no such order exists.

    `model` is that part of tokenizer.json, and `bpe` the same model as tokenizers has it. Costs 2 µs per token.
    """
    places = _places(model)
    whole_words = bool(model.get("ignore_merges"))
    if whole_words:  # those that no merge makes come last
        places |= {token: len(places) for token in model["vocab"] if len(token) > 1 and token not in places}
    tokens = sorted(places, key=places.__getitem__)
    parts = _parts(bpe, tokens)
    if whole_words:
        return None if 2 in parts else tokens
    return [token for token, count in zip(tokens, parts, strict=True) if count == 1]


def _merges(model: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        yield left, right


def _places(model: Mapping[str, Json]) -> dict[str, int]:
    """Where in the list the merge stands that makes a token."""
    places: dict[str, int] = {}
    apart: set[str] = set()
    before = ""
    for n, (left, right) in enumerate(_merges(model)):
        token = left + right
        if token != before and places.setdefault(token, n) != n:
            apart.add(token)
        before = token
    if apart:
        inside = {token[a:b] for token in apart for a in range(len(token)) for b in range(a + 2, len(token) + 1)}
        pairs = {pair: n for n, pair in enumerate(_merges(model)) if "".join(pair) in inside}
        places |= {token: last for token in apart if (last := _last_merge(token, pairs)) is not None}
    return places


def _last_merge(token: str, pairs: Mapping[tuple[str, str], int]) -> int | None:
    """The place of the merge that ends in this token; None if merging never comes to it."""
    parts: Sequence[str] = list(token)
    while len(parts) > 2:
        place, n = min((pairs.get(pair, len(pairs)), n) for n, pair in enumerate(pairwise(parts)))
        if place == len(pairs):
            return None
        parts = [*parts[:n], parts[n] + parts[n + 1], *parts[n + 2 :]]
    return pairs.get((parts[0], parts[1]))


def _parts(bpe: BPE, tokens: Sequence[str]) -> list[int]:
    """How many tokens each token is merged to when it stands alone."""
    whole_words = bpe.ignore_merges
    bpe.ignore_merges = False
    try:
        return [len(bpe.tokenize(token)) for token in tokens]
    finally:
        bpe.ignore_merges = whole_words
        bpe._clear_cache()  # else it stays full of these tokens
