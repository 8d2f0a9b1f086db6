"""The audit: are the logprobs in an exported file those that the engine's weights give to those very tokens?

Every sampled token is scored again by prefill and compared with what was recorded. A token that cannot be compared is
skipped, with the reason; nothing is guessed. It knows neither files nor HTTP.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Protocol

from rollq.job import Json
from rollq_worker.audit.exported_file import Line
from rollq_worker.audit.scorer import Refused, Scored

LIKELIEST = 128
"""Tokens from which the normaliser at another temperature is computed."""
VOCABULARY = 1 << 18
"""More than any model has: bounds what the other tokens can add to the normaliser."""
LOOSE = 0.005
"""Nats between those bounds that are too many to compare a token."""
WORST = 10
"""Tokens that are reported one by one."""
SHIFTS = (-1, 0, 1)

WEIGHTS = "sampled by other weights than the engine has now"
CONTEXT = "beyond the engine's context"
VOCABULARY_ENDS = "in a trace with an id beyond the vocabulary"
NO_LIST = "sampled at another temperature than 1, and the engine lists no likeliest tokens"
FLAT = "sampled at another temperature than 1, from too flat a distribution"


class Scores(Protocol):
    """What the audit needs of `scorer.Scorer`."""

    longest: int

    def score(self, ids: array[int], start: int, *, likeliest: int = 0) -> Scored: ...

    def next(self, ids: array[int], token: int, *, temperature: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Compared:
    """One sampled token. It holds on to its trajectory: keep few."""

    line: Line
    first: int
    """Where its trace begins."""
    position: int
    scored: float
    """By prefill."""
    decoded: float | None = None
    """As the next token of its prompt, where that was asked for as well."""

    @property
    def recorded(self) -> float:
        return self.line.logprobs[self.position]

    @property
    def difference(self) -> float:
        return abs(self.recorded - self.scored)

    def told(self) -> dict[str, Json]:
        return {
            "job": self.line.job,
            "position": self.position,
            "token": self.line.tokens[self.position],
            "version": self.line.versions[self.position],
            "recorded": self.recorded,
            "scored": self.scored,
            "decoded": self.decoded,
            "abs": self.difference,
        }


@dataclass(slots=True)
class Result:
    """What became of the sampled tokens of one trajectory."""

    job: str
    differences: array[float] = field(default_factory=lambda: array("d"))
    """array('d'): |recorded - scored| of each compared token, in nats."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Tokens by the reason they could not be compared."""
    shifts: dict[int, float] = field(default_factory=lambda: dict.fromkeys(SHIFTS, 0.0))
    """Sums of |recorded - scored so many positions later|, over the same tokens for each shift."""
    shifted: int = 0
    """Tokens in those sums."""
    worst: list[Compared] = field(default_factory=list)
    """The WORST that are furthest off, furthest first."""


class Auditor:
    """Scores and compares trajectories against one engine; used by several threads.

    `versions` are the weight versions that the engine can speak for; ids from `vocabulary` on are never sent.
    """

    def __init__(self, scorer: Scores, versions: frozenset[str], vocabulary: int) -> None:
        self.scorer = scorer
        self.versions = versions
        self.vocabulary = vocabulary

    def audit(self, line: Line) -> Result:
        """Raises EngineFailure."""
        result = Result(line.job)
        if reason := line.incomparable:
            result.skipped[f"sampled with {reason}"] = line.sampled
            return result
        first = 0
        for length in line.traces:
            self._trace(line, first, first + length, result)
            first += length
        return result

    def decode(self, token: Compared) -> float | None:
        """Its logprob as it was sampled, one token behind its prompt; None where the engine does not say.

        Raises EngineFailure.
        """
        line, i = token.line, token.position
        try:
            return self.scorer.next(line.tokens[token.first : i], line.tokens[i], temperature=line.temperature)
        except Refused:
            return None

    def _trace(self, line: Line, first: int, end: int, result: Result) -> None:
        """Compare the tokens `[first, end)`."""
        positions = self._positions(line, first, end, result)
        if not positions:
            return
        if max(line.tokens[first : positions[-1] + 1]) >= self.vocabulary:
            result.skipped[VOCABULARY_ENDS] += len(positions)
            return
        try:
            scored = self._score(line, first, positions[0], positions[-1])
        except Refused as e:
            result.skipped[f"refused: {e}"] += len(positions)
            return
        if scored is None:
            result.skipped[NO_LIST] += len(positions)
        else:
            _compare(line, first, positions, scored, result)

    def _score(self, line: Line, first: int, start: int, last: int) -> list[float | None] | None:
        """The logprobs of the tokens from `start` to `last`, at their temperature; their trace begins at `first`."""
        likeliest = LIKELIEST if line.temperature != 1.0 else 0
        scored = self.scorer.score(line.tokens[first : last + 1], start - 1 - first, likeliest=likeliest)
        return None if likeliest and scored.likeliest is None else rescaled(scored, line.temperature)

    def _positions(self, line: Line, first: int, end: int, result: Result) -> list[int]:
        """The sampled tokens of a trace that the engine can speak for."""
        positions = []
        for i in compress(range(first, end), line.mask[first:end]):
            if line.versions[i] not in self.versions:
                result.skipped[WEIGHTS] += 1
            elif i - first >= self.scorer.longest:
                result.skipped[CONTEXT] += 1
            else:
                positions.append(i)
        return positions


def rescaled(scored: Scored, temperature: float) -> list[float | None]:
    """The logprobs at that temperature; None where the likeliest tokens say too little.

    log softmax(logits / T) = logprob / T - log(sum over all tokens of p^(1/T)). The tokens that are not among the
    likeliest hold the mass R, each at most the smallest p listed, so their part of the sum lies between two bounds.
    """
    if temperature == 1.0 or scored.likeliest is None:
        return list(scored.logprobs)
    found: list[float | None] = []
    for logprob, top in zip(scored.logprobs, scored.likeliest, strict=True):
        rest = max(0.0, 1.0 - math.fsum(map(math.exp, top)))
        concentrated = rest * math.exp(min(top[-1] * (1 / temperature - 1), 700.0))
        spread_out = VOCABULARY * (rest / VOCABULARY) ** (1 / temperature)
        low, high = sorted((concentrated, spread_out))
        known = math.fsum(math.exp(p / temperature) for p in top)
        tight = math.log((known + high) / (known + low)) <= LOOSE
        found.append(logprob / temperature - math.log(known + (low + high) / 2) if tight else None)
    return found


def _compare(line: Line, first: int, positions: Sequence[int], scored: Sequence[float | None], result: Result) -> None:
    """`scored[0]` belongs to the first of the positions, the next to the token behind it, and so on."""
    origin = positions[0]
    compared = {i for i in positions if scored[i - origin] is not None}
    if len(compared) < len(positions):
        result.skipped[FLAT] += len(positions) - len(compared)
    for i in sorted(compared):
        recorded, said = line.logprobs[i], scored[i - origin]
        assert said is not None
        difference = abs(recorded - said)
        result.differences.append(difference)
        if len(result.worst) < WORST or difference > result.worst[-1].difference:
            result.worst = furthest([*result.worst, Compared(line, first, i, said)])
        if i - 1 in compared and i + 1 in compared:
            result.shifted += 1
            for shift in SHIFTS:
                result.shifts[shift] += abs(recorded - (scored[i - origin + shift] or 0.0))


def furthest(tokens: Sequence[Compared]) -> list[Compared]:
    return sorted(tokens, key=lambda token: -token.difference)[:WORST]
