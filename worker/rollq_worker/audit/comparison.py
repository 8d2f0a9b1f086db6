"""Compares recorded logprobs with those that the engine's weights now give to the same tokens.

Every sampled token is scored again by prefill. A token that cannot be compared is skipped, with the
reason. It knows neither files nor HTTP.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, takewhile

from rollq.job import Json
from rollq_worker.audit.exported_file import ExportedTrajectory, Piece
from rollq_worker.audit.scorer import Scorer, ScoringRefused
from rollq_worker.audit.token_classes import Part, Place, SampledTurn, Tally
from rollq_worker.protocols import Adapter

VOCABULARY = 1 << 18
"""Upper bound on a model's ids. It limits what the tokens that are not listed can add to the
normaliser.
"""
SINGLE = 5e-7
"""Largest error of a sum of probabilities, since logprobs are single precision."""
MOST_REPORTED = 10
"""Number of tokens that are reported one by one."""
SHIFTS = (-1, 0, 1)
MOST_SAMPLED_AGAIN = 64
"""Number of tokens of a turn that are sampled again."""

WEIGHTS = "sampled by other weights than the engine has now"
CONTEXT = "beyond the engine's context"
OUTSIDE_VOCABULARY = "in a trace with an id beyond the vocabulary"


@dataclass(frozen=True, slots=True)
class ComparedToken:
    """One sampled token. It keeps its trajectory in memory, so keep few."""

    trajectory: ExportedTrajectory
    position: int
    """Index of the token in the trajectory's lists."""
    scored: float
    """Logprob by prefill."""

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
    """Sum of |recorded - scored that many positions later| for each shift, over the same tokens.
    """
    shifted: int = 0
    """Number of tokens in those sums."""
    places: list[Place] = field(default_factory=list)
    """The tokens by their place in a turn, in order."""
    parts: int = 0
    """Number of trajectories and turns with compared tokens."""
    suspects: list[Part] = field(default_factory=list)
    """The trajectory, then turns of it, that have more than one outlier."""
    worst: list[ComparedToken] = field(default_factory=list)
    """The MOST_REPORTED tokens with the largest differences, largest first."""


class Auditor:
    """Scores and compares trajectories against one engine; used by several threads.

    `versions` are the weight versions that the engine has; ids from `vocabulary_end` on are never
    sent.
    """

    def __init__(self, scorer: Scorer, versions: frozenset[str], vocabulary_end: int) -> None:
        self._scorer = scorer
        self._versions = versions
        self._vocabulary_end = vocabulary_end

    def audit(self, trajectory: ExportedTrajectory, outlier: float) -> ComparisonResult:
        """Scores and compares one trajectory. Tokens off by more than `outlier` are outliers.
        Raises EngineFailure.
        """
        result = ComparisonResult(trajectory.job)
        start = 0
        scored = dict[int, float]()
        for length in trajectory.traces:
            scored |= self._compare_trace(trajectory, start, start + length, result)
            start += length
        _classify(trajectory, trajectory.turns(), scored, result, outlier)
        return result

    def audit_again(self, trajectory: ExportedTrajectory, turn: SampledTurn) -> ComparisonResult:
        """Has the engine sample the turn again, up to MOST_SAMPLED_AGAIN tokens, and compares those
        before the first one beyond the vocabulary. Raises EngineFailure.
        """
        result = ComparisonResult(trajectory.job)
        if not self._can_sample(trajectory, turn):
            return result
        prompt = trajectory.tokens[turn.trace_start : turn.begin]
        version = trajectory.versions[turn.begin]
        adapter = _adapter(trajectory, turn.begin)
        try:
            sampled = self._scorer.sample(prompt, _sampling(trajectory, turn), adapter)
        except ScoringRefused as e:
            result.skipped[f"refused: {e}"] += 1
            return result
        ids = array("I", takewhile(lambda id: id < self._vocabulary_end, sampled.ids))
        begin = len(prompt)
        end = begin + len(ids)
        again = replace(
            trajectory,
            tokens=prompt + ids,
            mask=bytes(begin) + b"\1" * len(ids),
            logprobs=array("d", bytes(8 * begin)) + sampled.logprobs[: len(ids)],
            versions=[version] * end,
            traces=[end],
            adapters=[adapter.name if adapter else ""],
            pieces=[Piece(len(ids), "", {})],
            sampling=turn.sampling,
        )
        scored = self._compare_trace(again, 0, end, result)
        stopped = sampled.stopped and ids == sampled.ids
        turn = replace(turn, trace_start=0, begin=begin, end=end, pieces=[end], stopped=stopped)
        _classify(again, [turn], scored, result, math.inf)
        return result

    def _can_sample(self, trajectory: ExportedTrajectory, turn: SampledTurn) -> bool:
        """True if the engine can sample this turn again under the same weights and conditions."""
        has_weights = (
            trajectory.adapter_at(turn.begin) or trajectory.versions[turn.begin] in self._versions
        )
        if not has_weights or self._obstacle(trajectory, turn.begin):
            return False
        if max(trajectory.tokens[turn.trace_start : turn.end]) >= self._vocabulary_end:
            return False
        return turn.begin - turn.trace_start + MOST_SAMPLED_AGAIN <= self._scorer.max_tokens

    def _compare_trace(
        self, trajectory: ExportedTrajectory, start: int, end: int, result: ComparisonResult
    ) -> Mapping[int, float]:
        """The scores of the trace's tokens that could be compared, by position."""
        positions = self._positions(trajectory, start, end, result)
        by_adapter = defaultdict[Adapter | None, list[int]](list)
        for i in positions:
            by_adapter[_adapter(trajectory, i)].append(i)
        scored: dict[int, float] = {}
        for adapter, those in by_adapter.items():
            scored |= self._score(trajectory, start, those, adapter, result)
        _compare(trajectory, scored, result)
        return scored

    def _score(
        self,
        trajectory: ExportedTrajectory,
        start: int,
        positions: Sequence[int],
        adapter: Adapter | None,
        result: ComparisonResult,
    ) -> Mapping[int, float]:
        """The scores of those of the tokens that could be compared, by position, with
        that adapter.
        """
        first = positions[0]
        ids = trajectory.tokens[start : positions[-1] + 1]
        if max(ids) >= self._vocabulary_end:
            result.skipped[OUTSIDE_VOCABULARY] += len(positions)
            return {}
        # The normaliser at another temperature than 1 is computed from so many likeliest tokens.
        # Where they do not determine it, the engine decodes behind the token's prefix: a request
        # for each token.
        is_scaled = any(trajectory.conditions[i].temperature != 1.0 for i in positions)
        likeliest = 128 if is_scaled else 0
        try:
            scores = self._scorer.score(
                ids, first - 1 - start, likeliest=likeliest, adapter=adapter
            )
        except ScoringRefused as e:
            result.skipped[f"refused: {e}"] += len(positions)
            return {}
        scored = dict[int, float]()
        tops: Sequence[Sequence[float]] = scores.top_logprobs or [()] * len(scores.logprobs)
        for i in positions:
            temperature = trajectory.conditions[i].temperature
            at = i - first
            logprob = rescale(scores.logprobs[at], tops[at], temperature)
            try:
                if logprob is None:
                    logprob = self._scorer.score_decoded(
                        ids[: i - start], ids[i - start], temperature, adapter
                    )
                scored[i] = logprob
            except ScoringRefused as e:
                result.skipped[f"refused: {e}"] += 1
        return scored

    def _obstacle(self, trajectory: ExportedTrajectory, position: int) -> str:
        """The parameter, or images, by which this engine cannot score the token; "" without one."""
        conditions = trajectory.conditions[position]
        return conditions.incomparable or (conditions.cut if self._scorer.cuts else "")

    def _positions(
        self, trajectory: ExportedTrajectory, start: int, end: int, result: ComparisonResult
    ) -> list[int]:
        """Positions of a trace's sampled tokens that this engine can score."""
        positions = []
        for i in compress(range(start, end), trajectory.mask[start:end]):
            if parameter := self._obstacle(trajectory, i):
                result.skipped[f"sampled with {parameter}"] += 1
            elif not trajectory.adapter_at(i) and trajectory.versions[i] not in self._versions:
                result.skipped[WEIGHTS] += 1
            elif i - start >= self._scorer.max_tokens:
                result.skipped[CONTEXT] += 1
            else:
                positions.append(i)
        return positions


def _adapter(trajectory: ExportedTrajectory, position: int) -> Adapter | None:
    """The adapter that sampled the token."""
    adapter = trajectory.adapter_at(position)
    if not adapter:
        return None
    return Adapter(adapter, str(trajectory.versions[position]))


def _sampling(trajectory: ExportedTrajectory, turn: SampledTurn) -> dict[str, Json]:
    """The parameters of the turn that decide which tokens are sampled. Tokens that were sampled
    with others are not compared.
    """
    names = ("temperature", "top_p", "top_k", "min_p")
    sampling = {name: turn.sampling[name] for name in names if name in turn.sampling}
    sampling["max_new_tokens"] = min(MOST_SAMPLED_AGAIN, turn.end - turn.begin)
    if turn.stopped:
        sampling["stop_token_ids"] = [trajectory.tokens[turn.end - 1]]
    return sampling


def rescale(logprob: float, top: Sequence[float], temperature: float) -> float | None:
    """The logprob of a token at that temperature; None where its likeliest tokens do not determine
    it.

    log softmax(logits / T) = logprob / T - log(sum over all tokens of p^(1/T)). The part of the
    tokens that are not listed lies between two bounds.
    """
    if temperature == 1.0:
        return logprob
    # Everything is divided by p^(1/T) of the likeliest, because powers of low temperatures
    # underflow.
    best = top[0] if top else 0.0
    listed = math.fsum(math.exp((p - best) / temperature) for p in top)
    rest = 1.0 - math.fsum(map(math.exp, top))
    low = min(_unlisted(rest - SINGLE, top, temperature))
    high = max(_unlisted(rest + SINGLE, top, temperature))
    # A token can be compared where those bounds are close, in nats.
    is_tight = listed + high <= (listed + low) * math.exp(0.005)
    if not is_tight:
        return None
    return (logprob - best) / temperature - math.log(listed + (low + high) / 2)


def _unlisted(rest: float, top: Sequence[float], temperature: float) -> tuple[float, float]:
    """The sum of (p / best)^(1/T) over the tokens that are not listed, which have the mass `rest`
    together: if they are as likely as the last of the list, and if all are equally likely.
    """
    if rest <= 0:
        return 0.0, 0.0
    best, smallest = (top[0], top[-1]) if top else (0.0, 0.0)
    concentrated = math.log(rest) + smallest * (1 / temperature - 1) - best / temperature
    spread_out = math.log(VOCABULARY) + (math.log(rest / VOCABULARY) - best) / temperature
    return math.exp(min(concentrated, 700.0)), math.exp(min(spread_out, 700.0))


def _compare(
    trajectory: ExportedTrajectory, scored: Mapping[int, float], result: ComparisonResult
) -> None:
    for i, logprob in scored.items():
        recorded = trajectory.logprobs[i]
        difference = abs(recorded - logprob)
        result.differences.append(difference)
        if len(result.worst) < MOST_REPORTED or difference > result.worst[-1].difference:
            result.worst = largest_differences(
                [*result.worst, ComparedToken(trajectory, i, logprob)]
            )
        if i - 1 in scored and i + 1 in scored:
            result.shifted += 1
            for shift in SHIFTS:
                result.shifts[shift] += abs(recorded - scored[i + shift])


def _classify(
    trajectory: ExportedTrajectory,
    turns: Iterable[SampledTurn],
    scored: Mapping[int, float],
    result: ComparisonResult,
    outlier: float,
) -> None:
    """Notes the place of each compared token, and tallies those of each turn and of all turns."""
    trajectory_part = Part(result.job, None, Tally())
    parts = [trajectory_part]
    for number, turn in enumerate(turns):
        of_turn = Tally()
        ids = hash(trajectory.tokens[turn.trace_start : turn.begin].tobytes())
        for i, kind in turn.classes():
            ids = hash((ids, trajectory.tokens[i]))
            if i in scored:
                difference = abs(trajectory.logprobs[i] - scored[i])
                result.places.append(Place(hash((ids, trajectory.versions[i])), kind, difference))
                of_turn.add(difference, outlier)
        trajectory_part.tally.join(of_turn)
        parts.append(Part(result.job, number, of_turn))
    result.parts = sum(part.tally.tokens > 0 for part in parts)
    result.suspects = [part for part in parts if part.tally.outliers > 1]


def largest_differences(tokens: Sequence[ComparedToken]) -> list[ComparedToken]:
    """The MOST_REPORTED of them, largest difference first."""
    return sorted(tokens, key=lambda token: -token.difference)[:MOST_REPORTED]
