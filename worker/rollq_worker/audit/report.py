"""The result of an audit: the numbers over all trajectories, and the verdict.

The invariant: only the prefill's numbers decide the verdict. It keeps eight bytes a token and the worst tokens, so a
file may be long. It knows nothing of engines.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rollq.job import Json
from rollq_worker.audit.comparison import SHIFTS, WORST, ComparedToken, ComparisonResult, largest_differences
from rollq_worker.audit.token_classes import OUTLIER

MAX_MEAN = 0.01
"""Largest mean difference of a good file, in nats.

Decoding and prefill differ only by kernels and rounding. In bf16, SGLang's means are up to 2e-6 on GPUs with like
kernels and 1e-4 on a CPU with a tiny model. Two bf16 engines differ by 0.005 to 0.006 (dense 32B). A temperature wrong
by 0.1, an index off by one or weights of another step give tenths.
"""
MAX_P99 = 0.1
"""Largest 99th percentile of a good file, in nats. The worst single token between two bf16 engines is 0.084, and 0.061
on the CPU."""
MIN_COMPARED = 0.95
"""Share of the sampled tokens that must be compared."""
ROUNDING = (0.01, OUTLIER)
"""Differences in nats that one rounding step of a bf16 logit explains: 0.0625 for logits from 8 to 16, 0.125 up to 32.

Smaller differences count as equal. Larger ones have another cause.
"""
MIN_SHIFT_MEAN = 0.001
"""Mean difference below which a shift proves nothing: a confident policy's logprobs are all about 0."""


def spread(differences: Sequence[float]) -> dict[str, Json]:
    """Number, mean, 99th percentile (the nearest rank below) and maximum; None if there are no differences."""
    if not differences:
        return {"tokens": 0, "mean_abs": None, "p99_abs": None, "max_abs": None}
    n = len(differences)
    top = heapq.nlargest(n - int(0.99 * (n - 1)), differences)
    return {"tokens": n, "mean_abs": math.fsum(differences) / n, "p99_abs": top[-1], "max_abs": top[0]}


def _revised(token: ComparedToken) -> float:
    """The difference by decoding if decoding gives what was recorded, else the difference by prefill."""
    decoded = math.inf if token.decoded is None else abs(token.recorded - token.decoded)
    return decoded if decoded <= ROUNDING[0] else token.difference


class Report:
    """The sum of the results of all trajectories."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.faulty = 0
        """Number of trajectories with a fault."""
        self.total = ComparisonResult("all")

    def add(self, result: ComparisonResult) -> None:
        self.trajectories += 1
        self.total.differences.extend(result.differences)
        self.total.skipped.update(result.skipped)
        self.total.shifted += result.shifted
        for shift, value in result.shifts.items():
            self.total.shifts[shift] += value
        for kind, tally in result.classes.items():
            self.total.classes[kind].join(tally)
        self.faulty += bool(result.faults)
        self.total.faults = (self.total.faults + result.faults)[:WORST]
        self.total.worst = largest_differences([*self.total.worst, *result.worst])

    def revise(self, decode: Callable[[ComparedToken], float | None]) -> None:
        """Have the engine decode the worst tokens of a good file as well, if rounding can explain them. Such tokens are
        rare.

        It changes the largest difference and nothing else.
        """
        least, most = ROUNDING
        numbers = spread(self.total.differences)
        if numbers["tokens"] and not self._mismatches() and numbers["p99_abs"] <= least:
            self.total.worst = [
                replace(token, decoded=decode(token)) if least < token.difference <= most else token
                for token in self.total.worst
            ]

    @property
    def shift(self) -> int:
        """The shift at which the scores fit the recorded logprobs at least twice as well as in place; else 0."""
        sums, n = self.total.shifts, self.total.shifted
        best = min(SHIFTS, key=lambda shift: (sums[shift], abs(shift)))
        return best if n and sums[0] / n > MIN_SHIFT_MEAN and sums[best] < sums[0] / 2 else 0

    def as_json(self) -> dict[str, Any]:
        """The object that `rollq audit --json` prints."""
        numbers, worst = spread(self.total.differences), self.total.worst
        others = heapq.nlargest(WORST + 1, self.total.differences)[WORST:]
        revised = [_revised(token) for token in worst]
        return {
            "trajectories": self.trajectories,
            "tokens": numbers.pop("tokens"),
            "skipped": self.total.skipped.total(),
            **numbers,
            "max_abs": max(revised + others, default=None),
            "max_abs_prefill": numbers["max_abs"],
            "revised": sum(new < token.difference for new, token in zip(revised, worst, strict=True)),
            "shift": self.shift,
            "classes": {kind.value: tally.as_json() for kind, tally in self.total.classes.items()},
            "faulty": self.faulty,
            "faults": [fault.as_json() for fault in self.total.faults],
            "worst": [token.as_json() for token in worst],
            "verdict": self.verdict,
        }

    @property
    def verdict(self) -> str:
        if self._mismatches():
            return "bad"
        return "incomplete" if self._gaps() else "ok"

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not ok, in words."""
        return [*self._mismatches(), *self._gaps()]

    def _mismatches(self) -> list[str]:
        numbers, reasons = spread(self.total.differences), []
        if numbers["tokens"] and numbers["mean_abs"] > MAX_MEAN:
            reasons.append(f"the mean difference is {numbers['mean_abs']:.4f}, above {MAX_MEAN:g}")
        if numbers["tokens"] and numbers["p99_abs"] > MAX_P99:
            reasons.append(f"the 99th percentile is {numbers['p99_abs']:.4f}, above {MAX_P99:g}")
        if self.shift:
            direction = "later" if self.shift > 0 else "earlier"
            reasons.append(f"the recorded logprobs fit the tokens one position {direction}")
        return [*reasons, *self._outliers()]

    def _outliers(self) -> Iterator[str]:
        """Faults that are too rare to move the numbers of the whole file."""
        for kind, tally in self.total.classes.items():
            if tally.bad("class"):
                off = f"{tally.outliers} of {tally.tokens}"
                yield f"{off} tokens of class {kind} are off by more than {OUTLIER:g}"
        if self.faulty:
            first = self.total.faults[0]
            where = first.job if first.turn is None else f"turn {first.turn} of {first.job}"
            yield f"too many tokens are off in {self.faulty} of {self.trajectories} trajectories, first in {where}"

    def _gaps(self) -> list[str]:
        compared, skipped = len(self.total.differences), self.total.skipped.total()
        enough = compared >= MIN_COMPARED * max(1, compared + skipped)
        return [] if enough else [f"{compared} of {compared + skipped} sampled tokens could be compared"]
