"""Where faults hide: each sampled token by its place in a turn, and how many of a class, turn or trajectory are off.

A mean over a whole file dilutes a fault that is rare in it. So the tokens of each class, each turn and each trajectory
are counted for themselves. It knows nothing of engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rollq.job import Json


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


class Place(NamedTuple):
    """A compared token, and where it is."""

    context: int
    """A hash of the token, of all before it in its trace, of its class and its weight version."""
    kind: TokenClass
    difference: float
    """Between its logprobs, in nats."""


def weighted(places: Sequence[Place]) -> Iterator[tuple[Place, float]]:
    """Each token with its weight: those of one context weigh 1 together, because they are one observation.

    Samples of a group begin with the same prompt, and those of a confident policy go on alike. The same token behind
    the same ids is off by about the same, however often it was sampled.
    """
    counts = Counter(place.context for place in places)
    return ((place, 1 / counts[place.context]) for place in places)


@dataclass(slots=True)
class Tally:
    """The differences of some tokens between the recorded and the scored logprob. All are sums of weights."""

    tokens: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    """Of the differences and of their squares, in nats."""
    outliers: float = 0.0

    def add(self, difference: float, limit: float, weight: float = 1.0) -> None:
        self.tokens += weight
        self.total += weight * difference
        self.squares += weight * difference * difference
        self.outliers += weight * (difference > limit)

    def join(self, other: Tally) -> None:
        self.tokens += other.tokens
        self.total += other.total
        self.squares += other.squares
        self.outliers += other.outliers

    @property
    def mean(self) -> float:
        return self.total / self.tokens

    @property
    def variance_of_mean(self) -> float:
        return max(0.0, self.squares - self.total * self.mean) / self.tokens**2

    def as_json(self) -> dict[str, Json]:
        mean = self.mean if self.tokens else None
        return {"tokens": round(self.tokens), "mean_abs": mean, "outliers": round(self.outliers, 1)}


@dataclass(frozen=True, slots=True)
class Part:
    """A trajectory, or one turn of it."""

    job: str
    turn: int | None
    """Number of the turn, from 0; None for the trajectory."""
    tally: Tally

    def as_json(self) -> dict[str, Json]:
        return {"job": self.job, "turn": self.turn, **self.tally.as_json()}


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """The sampled tokens `[begin, end)` of one turn."""

    trace_start: int
    """Where its trace begins."""
    begin: int
    end: int
    opens_trace: bool
    calls: bool
    pieces: Sequence[int]
    """Where its pieces end. A turn has several when its generation was interrupted."""
    stopped: bool
    """Whether its last token ended it, not a limit."""
    sampling: Mapping[str, Json]
    """What its first piece was sampled with."""

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
