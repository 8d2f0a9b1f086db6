"""The audit: are the logprobs in an exported file those that the engine's weights give to those very tokens?

Every sampled token is scored again by prefill and compared with what was recorded. A token that cannot be compared is
skipped, with the reason; nothing is guessed. It knows neither files nor HTTP.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Protocol

from rollq.job import Json
from rollq_worker.exported import Line
from rollq_worker.scorer import Refused, Scored

MEAN = 0.01
"""Largest mean |difference| of a good file, in nats. Decoding and prefill differ by kernels and rounding only: in bf16
SGLang's are equal up to 2e-6 on GPUs with like kernels, 7e-5 (CPU, tiny model) on average; two bf16 engines differ by
0.005 to 0.006 (dense 32B). A temperature wrong by 0.1, a token off by one or a stale step are tenths."""
P99 = 0.1
"""Largest 99th percentile, in nats: the worst single token between two bf16 engines is 0.084, 0.036 on the CPU."""
COMPARED = 0.95
"""Least share of the sampled tokens that must have been compared."""
NOISE = 0.001
"""Below this mean a shift says nothing: a confident policy's logprobs are all about 0."""
DOUBT = 0.01
"""A token off by more is scored once more by itself. A prefill of many tokens rounds some logits the other way than
decoding did, by up to one step of bf16 (0.06 for logits above 8); as the last of its prompt a token mostly gets the
very number that decoding gave it. A logprob that is wrong stays wrong."""
AGAIN = 20
"""More doubtful tokens in a trace than one, and one in that many, are no matter of rounding."""
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
    worst: list[tuple[float, dict[str, Json]]] = field(default_factory=list)

    def summary(self) -> dict[str, Json]:
        return {"job": self.job, **spread(self.differences), "skipped": self.skipped.total()}


def spread(differences: Sequence[float]) -> dict[str, Json]:
    """Number, mean, 99th percentile (the nearest rank below) and maximum; None for none."""
    if not differences:
        return {"tokens": 0, "mean_abs": None, "p99_abs": None, "max_abs": None}
    ordered, n = sorted(differences), len(differences)
    p99 = ordered[int(0.99 * (n - 1))]
    return {"tokens": n, "mean_abs": math.fsum(ordered) / n, "p99_abs": p99, "max_abs": ordered[-1]}


@dataclass(frozen=True, slots=True)
class Auditor:
    """Scores and compares trajectories against one engine."""

    scorer: Scores
    versions: frozenset[str]
    """The weight versions that the engine can speak for."""
    vocabulary: int
    """Ids from here on are never sent."""

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
            if scored is None:
                result.skipped[NO_LIST] += len(positions)
                return
            self._again(line, first, positions, scored)
        except Refused as e:
            result.skipped[f"refused: {e}"] += len(positions)
            return
        _compare(line, positions, scored, result)

    def _score(self, line: Line, first: int, start: int, last: int) -> list[float | None] | None:
        """The logprobs of the tokens from `start` to `last`, at their temperature; their trace begins at `first`."""
        likeliest = LIKELIEST if line.temperature != 1.0 else 0
        scored = self.scorer.score(line.tokens[first : last + 1], start - 1 - first, likeliest=likeliest)
        return None if likeliest and scored.likeliest is None else rescaled(scored, line.temperature)

    def _again(self, line: Line, first: int, positions: Sequence[int], scored: list[float | None]) -> None:
        """A second opinion on the few tokens that are off: the score that is nearer to the record counts."""

        def off(i: int, score: float | None) -> float:
            return 0.0 if score is None else abs(line.logprobs[i] - score)

        doubtful = [i for i in positions if off(i, scored[i - positions[0]]) > DOUBT]
        if len(doubtful) > 1 + len(positions) // AGAIN:
            return
        for i in doubtful:
            alone = self._score(line, first, i, i)
            if alone and alone[0] is not None and off(i, alone[0]) < off(i, scored[i - positions[0]]):
                scored[i - positions[0]] = alone[0]

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


def _compare(line: Line, positions: Sequence[int], scored: Sequence[float | None], result: Result) -> None:
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
        if len(result.worst) < WORST or difference > result.worst[-1][0]:
            token = {"job": line.job, "position": i, "token": line.tokens[i], "version": line.versions[i]}
            _keep(result.worst, difference, {**token, "recorded": recorded, "scored": said, "abs": difference})
        if i - 1 in compared and i + 1 in compared:
            result.shifted += 1
            for shift in SHIFTS:
                result.shifts[shift] += abs(recorded - (scored[i - origin + shift] or 0.0))


def _keep(worst: list[tuple[float, dict[str, Json]]], difference: float, token: dict[str, Json]) -> None:
    """Keeps the list at its WORST, largest first."""
    worst.append((difference, token))
    worst.sort(key=lambda entry: -entry[0])
    del worst[WORST:]


class Report:
    """The sum of all results."""

    def __init__(self) -> None:
        self.each: list[dict[str, Json]] = []
        self.total = Result("")

    def add(self, result: Result) -> None:
        self.each.append(result.summary())
        self.total.differences.extend(result.differences)
        self.total.skipped.update(result.skipped)
        self.total.shifted += result.shifted
        for shift, value in result.shifts.items():
            self.total.shifts[shift] += value
        self.total.worst = list(heapq.merge(self.total.worst, result.worst, key=lambda entry: -entry[0]))[:WORST]

    @property
    def shift(self) -> int:
        """How many positions later the scores fit the recorded logprobs best: twice as well as in place, or 0."""
        sums, n = self.total.shifts, self.total.shifted
        best = min(SHIFTS, key=lambda shift: (sums[shift], abs(shift)))
        return best if n and sums[0] / n > NOISE and sums[best] < sums[0] / 2 else 0

    def found(self) -> dict[str, Any]:
        """Everything, as JSON can say it."""
        numbers, skipped = spread(self.total.differences), self.total.skipped.total()
        problems = self._problems(numbers, skipped)
        compared = numbers["tokens"] >= COMPARED * max(1, numbers["tokens"] + skipped)
        verdict = "bad" if problems else "ok" if compared else "incomplete"
        if not compared:
            problems.append(f"{numbers['tokens']} of {numbers['tokens'] + skipped} sampled tokens could be compared")
        return {
            "trajectories": len(self.each),
            "tokens": numbers.pop("tokens"),
            "skipped": skipped,
            **numbers,
            "shift": self.shift,
            "worst": [token for _, token in self.total.worst],
            "verdict": verdict,
            "problems": problems,
            "reasons": dict(self.total.skipped),
            "each": self.each,
        }

    def _problems(self, numbers: Mapping[str, Json], skipped: int) -> list[str]:
        problems = []
        if numbers["tokens"] and numbers["mean_abs"] > MEAN:
            problems.append(f"the mean difference is {numbers['mean_abs']:.4f}, above {MEAN:g}")
        if numbers["tokens"] and numbers["p99_abs"] > P99:
            problems.append(f"the 99th percentile is {numbers['p99_abs']:.4f}, above {P99:g}")
        if self.shift:
            direction = "later" if self.shift > 0 else "earlier"
            problems.append(f"the recorded logprobs fit the tokens one position {direction}")
        return problems
