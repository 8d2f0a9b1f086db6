"""Where faults hide: each sampled token by its place in a turn, and how many of a class, turn or trajectory are off.

A mean over a whole file dilutes a fault that is rare in it. So the tokens of each class, each turn and each trajectory
are counted for themselves. It knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollq.job import Json

OUTLIER = 0.125
"""Largest difference in nats that one rounding step of a bf16 logit explains. Tokens farther off are outliers."""
LEAST_OUTLIERS = 3
"""Fewer outliers prove nothing: one token in thousands may be far off where two logits are close."""
MAX_SHARE = {"class": 0.002, "trajectory": 0.01, "turn": 0.1}
"""The share of outliers above which a class of tokens, a trajectory or a turn is bad."""


class TokenClass(StrEnum):
    """The place of a sampled token. A token has one; the earlier one in this list counts."""

    INTERRUPTION = "interruption"
    """The first one after an interruption, when the turn went on from its partial ids."""
    FIRST = "first"
    """The first one after the prompt of a trace."""
    BRIDGE = "bridge"
    """The first one of a turn after a bridge: behind a tool result or a user's message."""
    STOP = "stop"
    """The one that ended its turn."""
    CALL = "call"
    """Others, in a turn with a tool call."""
    TEXT = "text"
    """Others."""


@dataclass(slots=True)
class Tally:
    """The differences of some tokens between the recorded and the scored logprob."""

    tokens: int = 0
    total: float = 0.0
    """Sum of the differences, in nats."""
    outliers: int = 0

    def add(self, difference: float) -> None:
        self.tokens += 1
        self.total += difference
        self.outliers += difference > OUTLIER

    def join(self, other: Tally) -> None:
        self.tokens += other.tokens
        self.total += other.total
        self.outliers += other.outliers

    def bad(self, what: str) -> bool:
        """Whether it has too many outliers for a class, a trajectory or a turn."""
        return self.outliers >= LEAST_OUTLIERS and self.outliers > MAX_SHARE[what] * self.tokens

    def as_json(self) -> dict[str, Json]:
        mean = self.total / self.tokens if self.tokens else None
        return {"tokens": self.tokens, "mean_abs": mean, "outliers": self.outliers}


@dataclass(frozen=True, slots=True)
class Fault:
    """A trajectory, or one turn of it, with too many outliers."""

    job: str
    turn: int | None
    """Number of the turn, from 0; None for the trajectory."""
    tally: Tally

    def as_json(self) -> dict[str, Json]:
        return {"job": self.job, "turn": self.turn, **self.tally.as_json()}


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """The sampled tokens `[begin, end)` of one turn."""

    begin: int
    end: int
    opens_trace: bool
    calls: bool
    pieces: Sequence[int]
    """Where its pieces end. A turn has several when its generation was interrupted."""
    stopped: bool
    """Whether its last token ended it, not a limit."""

    def classes(self) -> Iterator[tuple[int, TokenClass]]:
        """Each of its positions, with its class."""
        resumed, inner = set(self.pieces[:-1]), TokenClass.CALL if self.calls else TokenClass.TEXT
        for i in range(self.begin, self.end):
            if i in resumed:
                yield i, TokenClass.INTERRUPTION
            elif i == self.begin:
                yield i, TokenClass.FIRST if self.opens_trace else TokenClass.BRIDGE
            else:
                yield i, TokenClass.STOP if self.stopped and i == self.end - 1 else inner
