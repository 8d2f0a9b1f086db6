"""How a request goes wrong that would have gone well: `--errors`."""

import random
from enum import StrEnum


class Fault(StrEnum):
    """The kinds, all equally likely."""

    FULL = "full"
    """503, as from a full queue."""
    RESET = "reset"
    """The connection is closed without an answer."""
    GARBAGE = "garbage"
    """200 with half a body."""
    ABORT = "abort"
    """The generation is aborted somewhere in the middle."""


def draw(rng: random.Random, rate: float) -> Fault | None:
    """A fault with chance `rate`."""
    return rng.choice(list(Fault)) if rate and rng.random() < rate else None
