"""Logprobs for tokens that no model sampled.

The invariant: a token's logprob depends on itself and the token before it alone, so that scoring a sequence again by
prefill gives exactly what generating it gave.
"""

from collections.abc import Sequence

STEPS = 1 << 20
OTHERS = 100
"""Tokens that compete, at the least, with those that are shown as the best ones."""


def logprob(before: int, token: int) -> float:
    """Somewhere in (-3, 0), the same for the same two tokens."""
    mixed = (before * 0x9E3779B1 + token * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 15) * 0x2C1B3C6D) & 0xFFFFFFFF
    return round(-3.0 * ((mixed >> 12) + 1) / (STEPS + 1), 6)


def continuation(before: int, tokens: Sequence[int]) -> list[float]:
    """One for each of `tokens`, the first of which follows the token `before`."""
    scored = []
    for token in tokens:
        scored.append(logprob(before, token))
        before = token
    return scored


def best(before: int, token: int, count: int, vocab: int) -> list[tuple[float, int]]:
    """The `count` highest of `token` and of some others at its place, with their ids, the best one first.

    Scoring the whole vocabulary in Python would take a tenth of a second a token.
    """
    step = max(1, vocab // (count + OTHERS))
    ids = {token, *range(before % step, vocab, step)}
    return sorted(((logprob(before, id), id) for id in ids), reverse=True)[:count]


def prompt(tokens: Sequence[int], start: int) -> list[float | None]:
    """One for each of `tokens[start:]`; None for the first of them, as SGLang has it."""
    rest = tokens[start:]
    return [None, *continuation(rest[0], rest[1:])] if rest else []
