"""Classes of sampled tokens by their place in a turn, and tallies of classes, turns and
trajectories.

A mean over a file dilutes a fault that is rare in it. So the tokens of each class, each turn and
each trajectory are counted for themselves. It knows nothing of engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """A hash of the token, of all before it in its trace, and of its weight version."""
    kind: TokenClass
    difference: float
    """Difference of its logprobs in nats."""


@dataclass(slots=True)
class Tally:
    """The differences of some tokens between the recorded and the scored logprob."""

    tokens: int = 0
    total: float = 0.0
    squares: float = 0.0
    """Sums of the differences and of their squares, in nats."""
    outliers: int = 0
    repeats: int = 0
    """Number of pairs (a, b) of different tokens that are the same token behind the same ids."""

    def add(self, difference: float, limit: float) -> None:
        self.tokens += 1
        self.total += difference
        self.squares += difference * difference
        self.outliers += difference > limit

    def join(self, other: Tally) -> None:
        self.tokens += other.tokens
        self.total += other.total
        self.squares += other.squares
        self.outliers += other.outliers
        self.repeats += other.repeats

    @property
    def independent(self) -> float:
        """The part of the tokens that counts as independent observations: 1 where none is repeated.

        Samples of a group begin with the same prompt, and those of a confident policy go on alike;
        the same token is then off by about the same, however often it was sampled. This is the
        effective sample size of L. Kish, Survey Sampling, 1965, for clusters whose members are
        equal.
        """
        return self.tokens / (self.tokens + self.repeats) if self.tokens else 1.0

    @property
    def mean(self) -> float:
        return self.total / self.tokens

    @property
    def variance_of_mean(self) -> float:
        return max(0.0, self.squares - self.total * self.mean) / self.tokens**2 / self.independent

    def as_json(self) -> dict[str, Json]:
        return {
            "tokens": self.tokens,
            "mean_abs": self.mean if self.tokens else None,
            "outliers": self.outliers,
        }


def note_repeats(tallies: Mapping[TokenClass, Tally], places: Iterable[Place]) -> None:
    """Counts places that are the same token behind the same ids. All are in the tallies."""
    for (kind, _), count in Counter((place.kind, place.context) for place in places).items():
        tallies[kind].repeats += count * (count - 1)


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
    """Index at which its trace begins."""
    begin: int
    end: int
    opens_trace: bool
    calls: bool
    pieces: Sequence[int]
    """Indexes at which its pieces end. A turn has several when its generation was interrupted."""
    stopped: bool
    """True if its last token ended it, not a limit."""
    sampling: Mapping[str, Json]
    """Sampling parameters of its first piece."""

    def classes(self) -> Iterator[tuple[int, TokenClass]]:
        """Each of its positions, with its class."""
        resumed = set(self.pieces[:-1])
        for i in range(self.begin, self.end):
            if i in resumed:
                yield i, TokenClass.INTERRUPTION
            elif i == self.begin:
                yield i, TokenClass.FIRST if self.opens_trace else TokenClass.BRIDGE
            elif self.stopped and i == self.end - 1:
                yield i, TokenClass.STOP
            else:
                yield i, TokenClass.CALL if self.calls else TokenClass.TEXT
