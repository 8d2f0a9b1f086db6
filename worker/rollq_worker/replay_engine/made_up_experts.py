"""Routed experts for tokens that no model read.

The invariant: a token's experts depend only on the token and its place, so a row that was reported is the same in every
later reply, as from SGLang's cache.
"""

import base64
from array import array
from collections.abc import Sequence

from rollq.trajectory_extras import ExpertShape


def row(token: int, place: int, shape: ExpertShape) -> list[int]:
    """The experts of one token: layer after layer, all different within a layer."""
    mixed = (token * 0x9E3779B1 + place * 0x85EBCA77) & 0xFFFFFFFF
    return [
        (mixed + layer * 0x2C1B3C6D + step) % shape.experts
        for layer in range(shape.layers)
        for step in range(shape.top_k)
    ]


def encoded(tokens: Sequence[int], start: int, shape: ExpertShape) -> str:
    """Those of `tokens[start:]` but for the last token, as SGLang reports them: 32-bit ids in base64."""
    ids = array("i")
    for place in range(start, len(tokens) - 1):
        ids.extend(row(tokens[place], place, shape))
    return base64.b64encode(ids.tobytes()).decode()
