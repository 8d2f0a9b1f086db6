"""Compares recorded logprobs with those that the engine's weights now give to the same tokens.

Every sampled token is scored again by prefill. A token that cannot be compared is skipped, with the reason. It knows
neither files nor HTTP.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from rollq.job import Json
from rollq_worker.audit.exported_file import ExportedTrajectory
from rollq_worker.audit.scorer import Scorer, ScoringRefused
from rollq_worker.audit.token_classes import Fault, Tally, TokenClass

LIKELIEST = 128
"""Number of likeliest tokens from which the normaliser at a temperature other than 1 is computed."""
VOCABULARY = 1 << 18
"""More ids than any model has. It bounds what the tokens that are not listed can add to the normaliser."""
MAX_UNCERTAINTY = 0.005
"""Largest distance of those bounds, in nats, at which a token can still be compared."""
WORST = 10
"""Number of tokens that are reported one by one."""
SHIFTS = (-1, 0, 1)

WEIGHTS = "sampled by other weights than the engine has now"
CONTEXT = "beyond the engine's context"
OUTSIDE_VOCABULARY = "in a trace with an id beyond the vocabulary"
NO_LIST = "sampled at another temperature than 1, and the engine lists no likeliest tokens"
FLAT = "sampled at another temperature than 1, from too flat a distribution"


@dataclass(frozen=True, slots=True)
class ComparedToken:
    """One sampled token. It keeps its whole trajectory in memory, so keep few."""

    trajectory: ExportedTrajectory
    trace_start: int
    """Where its trace begins, as an index into the trajectory's lists."""
    position: int
    """Where the token is, as an index into the trajectory's lists."""
    scored: float
    """Its logprob by prefill."""
    decoded: float | None = None
    """Its logprob when the engine decodes it right after its prompt; None if the engine was not asked."""

    @property
    def recorded(self) -> float:
        return self.trajectory.logprobs[self.position]

    @property
    def difference(self) -> float:
        return abs(self.recorded - self.scored)

    def as_json(self) -> dict[str, Json]:
        return {
            "job": self.trajectory.job,
            "position": self.position,
            "token": self.trajectory.tokens[self.position],
            "version": self.trajectory.versions[self.position],
            "recorded": self.recorded,
            "scored": self.scored,
            "decoded": self.decoded,
            "abs": self.difference,
        }


@dataclass(slots=True)
class ComparisonResult:
    """The comparison of one trajectory's sampled tokens."""

    job: str
    differences: array[float] = field(default_factory=lambda: array("d"))
    """array('d'): |recorded - scored| of each compared token, in nats."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of tokens that could not be compared, by reason."""
    shifts: dict[int, float] = field(default_factory=lambda: dict.fromkeys(SHIFTS, 0.0))
    """For each shift: the sum of |recorded - scored that many positions later|, over the same tokens."""
    shifted: int = 0
    """Number of tokens in those sums."""
    classes: dict[TokenClass, Tally] = field(default_factory=lambda: {kind: Tally() for kind in TokenClass})
    """The tokens by their place in a turn."""
    faults: list[Fault] = field(default_factory=list)
    """The trajectory, or turns of it, with too many outliers."""
    worst: list[ComparedToken] = field(default_factory=list)
    """The WORST tokens with the largest differences, largest first."""


class Auditor:
    """Scores and compares trajectories against one engine; used by several threads.

    `versions` are the weight versions that the engine has; ids from `vocabulary_end` on are never sent.
    """

    def __init__(self, scorer: Scorer, versions: frozenset[str], vocabulary_end: int) -> None:
        self._scorer = scorer
        self._versions = versions
        self._vocabulary_end = vocabulary_end

    def audit(self, trajectory: ExportedTrajectory) -> ComparisonResult:
        """Scores and compares one trajectory. Raises EngineFailure."""
        result = ComparisonResult(trajectory.job)
        start, scored = 0, dict[int, float]()
        for length in trajectory.traces:
            scored |= self._compare_trace(trajectory, start, start + length, result)
            start += length
        _classify(trajectory, scored, result)
        return result

    def decode(self, token: ComparedToken) -> float | None:
        """The token's logprob when it is the one token generated after its prompt; None if the engine refuses.

        Raises EngineFailure.
        """
        trajectory, i = token.trajectory, token.position
        prompt = trajectory.tokens[token.trace_start : i]
        try:
            temperature = trajectory.conditions[i].temperature
            return self._scorer.score_next(prompt, trajectory.tokens[i], temperature=temperature)
        except ScoringRefused:
            return None

    def _compare_trace(
        self, trajectory: ExportedTrajectory, start: int, end: int, result: ComparisonResult
    ) -> Mapping[int, float]:
        """The scores of the trace's tokens that could be compared, by position."""
        positions = self._positions(trajectory, start, end, result)
        if not positions:
            return {}
        first, ids = positions[0], trajectory.tokens[start : positions[-1] + 1]
        if max(ids) >= self._vocabulary_end:
            result.skipped[OUTSIDE_VOCABULARY] += len(positions)
            return {}
        likeliest = LIKELIEST if any(trajectory.conditions[i].temperature != 1.0 for i in positions) else 0
        try:
            scores = self._scorer.score(ids, first - 1 - start, likeliest=likeliest)
        except ScoringRefused as e:
            result.skipped[f"refused: {e}"] += len(positions)
            return {}
        scored = {}
        for i in positions:
            temperature = trajectory.conditions[i].temperature
            if temperature != 1.0 and scores.likeliest is None:
                result.skipped[NO_LIST] += 1
                continue
            top = scores.likeliest[i - first] if scores.likeliest else ()
            logprob = rescale(scores.logprobs[i - first], top, temperature)
            if logprob is None:
                result.skipped[FLAT] += 1
            else:
                scored[i] = logprob
        _compare(trajectory, start, scored, result)
        return scored

    def _positions(self, trajectory: ExportedTrajectory, start: int, end: int, result: ComparisonResult) -> list[int]:
        """Positions of a trace's sampled tokens that this engine can score."""
        positions = []
        for i in compress(range(start, end), trajectory.mask[start:end]):
            if parameter := trajectory.conditions[i].incomparable:
                result.skipped[f"sampled with {parameter}"] += 1
            elif trajectory.versions[i] not in self._versions:
                result.skipped[WEIGHTS] += 1
            elif i - start >= self._scorer.max_tokens:
                result.skipped[CONTEXT] += 1
            else:
                positions.append(i)
        return positions


def rescale(logprob: float, top: Sequence[float], temperature: float) -> float | None:
    """The logprob of a token at that temperature; None where its likeliest tokens do not determine it.

    log softmax(logits / T) = logprob / T - log(sum over all tokens of p^(1/T)). The unlisted tokens have the mass R
    together, and each at most the smallest listed p. So their part of the sum lies between two bounds.
    """
    if temperature == 1.0:
        return logprob
    rest = max(0.0, 1.0 - math.fsum(map(math.exp, top)))
    concentrated = rest * math.exp(min(top[-1] * (1 / temperature - 1), 700.0))
    spread_out = VOCABULARY * (rest / VOCABULARY) ** (1 / temperature)
    low, high = sorted((concentrated, spread_out))
    known = math.fsum(math.exp(p / temperature) for p in top)
    tight = math.log((known + high) / (known + low)) <= MAX_UNCERTAINTY
    return logprob / temperature - math.log(known + (low + high) / 2) if tight else None


def _compare(
    trajectory: ExportedTrajectory, trace_start: int, scored: Mapping[int, float], result: ComparisonResult
) -> None:
    for i, logprob in scored.items():
        recorded = trajectory.logprobs[i]
        difference = abs(recorded - logprob)
        result.differences.append(difference)
        if len(result.worst) < WORST or difference > result.worst[-1].difference:
            result.worst = largest_differences([*result.worst, ComparedToken(trajectory, trace_start, i, logprob)])
        if i - 1 in scored and i + 1 in scored:
            result.shifted += 1
            for shift in SHIFTS:
                result.shifts[shift] += abs(recorded - scored[i + shift])


def _classify(trajectory: ExportedTrajectory, scored: Mapping[int, float], result: ComparisonResult) -> None:
    """Tally the compared tokens by class, and look for turns that are off. A trajectory that is off as a whole is one
    fault."""
    whole, faults = Tally(), list[Fault]()
    for number, turn in enumerate(trajectory.turns()):
        of_turn = Tally()
        for i, kind in turn.classes():
            if i in scored:
                difference = abs(trajectory.logprobs[i] - scored[i])
                result.classes[kind].add(difference)
                of_turn.add(difference)
        whole.join(of_turn)
        if of_turn.bad("turn"):
            faults.append(Fault(result.job, number, of_turn))
    result.faults = [Fault(result.job, None, whole)] if whole.bad("trajectory") else faults


def largest_differences(tokens: Sequence[ComparedToken]) -> list[ComparedToken]:
    """The WORST of them, largest difference first."""
    return sorted(tokens, key=lambda token: -token.difference)[:WORST]
