"""Logprobs for tokens that no model sampled or read.

The invariant: a token's logprob depends only on itself and the token before it. So scoring a
sequence again gives exactly what generating it gave.
"""

from collections.abc import Sequence
from itertools import pairwise

RESOLUTION = 1 << 20


def logprob(before: int, token: int) -> float:
    """A logprob in (-3, 0), the same for the same two tokens."""
    mixed = (before * 0x9E3779B1 + token * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 15) * 0x2C1B3C6D) & 0xFFFFFFFF
    return round(-3.0 * ((mixed >> 12) + 1) / (RESOLUTION + 1), 6)


def continuation(before: int, tokens: Sequence[int]) -> list[float]:
    """The logprobs of `tokens`, the first of which follows the token `before`."""
    return [logprob(*pair) for pair in pairwise([before, *tokens])]


def prompt(tokens: Sequence[int], start: int) -> list[float | None]:
    """The logprobs of `tokens[start:]`. The first is None, as in SGLang."""
    rest = tokens[start:]
    if rest:
        return [None, *continuation(rest[0], rest[1:])]
    return []


def best(
    before: int,
    token: int,
    count: int,
    vocab: int,
) -> list[tuple[float, int]]:
    """The `count` highest logprobs of `token` and of some others in its place, with their ids, the
    best first.

    Scoring the whole vocabulary in Python would take 0.1 s per token.
    """
    step = max(1, vocab // (count + 100))
    ids = {token, *range(before % step, vocab, step)}
    return sorted(((logprob(before, id), id) for id in ids), reverse=True)[:count]
