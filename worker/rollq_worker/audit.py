"""The audit: are the logprobs in an exported file those that the engine's weights give to those very tokens?

Every sampled token is scored again by prefill and compared with what was recorded. A token that cannot be compared is
skipped, with the reason; nothing is guessed. It knows the exported form; HTTP is the scorer's business.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import heapq
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

from rollq.errors import ContractError, SettingsError
from rollq.job import Json
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
LIKELIEST = 128
"""Tokens from which the normaliser at another temperature is computed."""
VOCABULARY = 1 << 18
"""More than any model has: bounds what the other tokens can add to the normaliser."""
LOOSE = 0.005
"""Nats between those bounds that are too many to compare a token."""
WORST = 10
"""Tokens that are reported one by one."""
SHIFTS = (-1, 0, 1)

CHANGED_BY: Mapping[str, Json] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "logit_bias": None,
    "regex": None,
    "json_schema": None,
    "ebnf": None,
}
"""Sampling parameters that change a sampled token's logprob and not a scored one's, with the value that means none."""

WEIGHTS = "sampled by other weights than the engine has now"
CONTEXT = "beyond the engine's context"
VOCABULARY_ENDS = "in a trace with an id beyond the vocabulary"
NO_LIST = "sampled at another temperature than 1, and the engine lists no likeliest tokens"
FLAT = "sampled at another temperature than 1, from too flat a distribution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One trajectory as exported. Position i of every list is the same token."""

    where: str
    job: str
    tokens: array[int]
    mask: bytes
    logprobs: array[float]
    versions: Sequence[str | None]
    traces: Sequence[int]
    sampling: Mapping[str, Json]

    @property
    def sampled(self) -> int:
        return self.mask.count(1)

    @property
    def given(self) -> Iterator[int]:
        """The ids that were not sampled."""
        return compress(self.tokens, self.mask.translate(bytes([1, 0]).ljust(256, b"\0")))

    @property
    def temperature(self) -> float:
        """As it divides the logits: greedy sampling reports raw logprobs, as temperature 1 does."""
        temperature = float(self.sampling.get("temperature", 1.0))
        return temperature if temperature > 1e-6 else 1.0

    @property
    def incomparable(self) -> str:
        """The sampling parameter for which none of its tokens can be compared, if there is one."""
        for name, none in CHANGED_BY.items():
            if (value := self.sampling.get(name)) and value != none:
                return name
        return ""


def read(path: Path) -> Iterator[Line]:
    """The file's trajectories. Raises SettingsError when it cannot be read, ContractError naming the line."""
    number = 0
    try:
        with path.open("rb") as f:
            for number, text in enumerate(f, 1):
                yield _line(text, f"{path}:{number}")
    except OSError as e:
        raise SettingsError(f"cannot read {path}: {e.strerror}") from e
    if not number:
        raise ContractError(f"{path} holds no trajectory")


def _line(text: bytes, where: str) -> Line:
    try:
        found = json.loads(text)
    except ValueError as e:
        raise ContractError(f"{where} is not a line of JSON: {e}") from e
    if not isinstance(found, dict):
        raise ContractError(f"{where} is not an exported trajectory but a {type(found).__name__}")
    try:
        line = Line(
            where=where,
            job=str(found["job"]),
            tokens=array("I", found["tokens"]),
            mask=bytes(found["mask"]),
            logprobs=array("d", found["logprobs"]),
            versions=list(found["versions"]),
            traces=list(found.get("traces", [len(found["tokens"])])),
            sampling=dict(found.get("sampling") or {}),
        )
        _check(line)
    except KeyError as e:
        raise ContractError(f"{where} is not an exported trajectory: it has no {e}") from e
    except (TypeError, ValueError, OverflowError) as e:
        raise ContractError(f"{where} is not an exported trajectory: {e}") from e
    return line


def _check(line: Line) -> None:
    """Raises ValueError or TypeError."""
    lengths = {name: len(getattr(line, name)) for name in ("tokens", "mask", "logprobs", "versions")}
    if len(set(lengths.values())) > 1:
        raise ValueError("its lengths differ: " + ", ".join(f"{n} {name}" for name, n in lengths.items()))
    if any(type(n) is not int or n < 1 for n in line.traces) or sum(line.traces) != len(line.tokens):
        raise ValueError(f"its traces {list(line.traces)} do not make up its {len(line.tokens)} tokens")
    if line.mask.translate(None, b"\0\1"):
        raise ValueError("its mask holds more than 0 and 1")
    first = 0
    for length in line.traces:
        if line.mask[first]:
            raise ValueError(f"token {first} opens a trace and was sampled: there is nothing before it")
        first += length
    for i in compress(range(len(line.mask)), line.mask):
        if not (math.isfinite(line.logprobs[i]) and isinstance(line.versions[i], str)):
            raise ValueError(f"token {i} was sampled, with logprob {line.logprobs[i]} and version {line.versions[i]!r}")
    if not 0 <= line.temperature < math.inf:
        raise ValueError(f"its temperature is {line.temperature}")


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
        """Compare the tokens `[first, end)`: one request."""
        positions = self._positions(line, first, end, result)
        if not positions:
            return
        start, stop = positions[0] - 1, positions[-1] + 1
        ids, scaled = line.tokens[first:stop], line.temperature != 1.0
        if max(ids) >= self.vocabulary:
            result.skipped[VOCABULARY_ENDS] += len(positions)
            return
        try:
            scored = self.scorer.score(ids, start - first, likeliest=LIKELIEST if scaled else 0)
        except Refused as e:
            result.skipped[f"refused: {e}"] += len(positions)
            return
        if scaled and scored.likeliest is None:
            result.skipped[NO_LIST] += len(positions)
            return
        _compare(line, start + 1, positions, rescaled(scored, line.temperature), result)

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


def _compare(line: Line, origin: int, positions: Sequence[int], scored: Sequence[float | None], result: Result) -> None:
    """`scored[i]` belongs to the token at `origin + i`."""
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
