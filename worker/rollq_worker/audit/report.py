"""What an audit found: the numbers over all trajectories, and the verdict.

The invariant: the verdict follows from the numbers of the prefill alone. It keeps eight bytes a token and the worst
tokens, so a file may be long. It knows nothing of engines.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rollq.job import Json
from rollq_worker.audit.comparison import SHIFTS, WORST, Compared, Result, furthest

MEAN = 0.01
"""Largest mean |difference| of a good file, in nats. Decoding and prefill differ by kernels and rounding only: in bf16
SGLang's are equal up to 2e-6 on GPUs with like kernels, 1e-4 (CPU, tiny model) on average; two bf16 engines differ by
0.005 to 0.006 (dense 32B). A temperature wrong by 0.1, a token off by one or a stale step are tenths."""
P99 = 0.1
"""Largest 99th percentile, in nats: the worst single token between two bf16 engines is 0.084, 0.061 on the CPU."""
COMPARED = 0.95
"""Least share of the sampled tokens that must have been compared."""
ROUNDING = (0.01, 0.125)
"""Nats that one rounding step of a bf16 logit (0.0625 from 8 to 16, 0.125 to 32) explains: what is less counts as
equal, what is more is something else."""
NOISE = 0.001
"""Below this mean a shift says nothing: a confident policy's logprobs are all about 0."""


def spread(differences: Sequence[float]) -> dict[str, Json]:
    """Number, mean, 99th percentile (the nearest rank below) and maximum; None for none."""
    if not differences:
        return {"tokens": 0, "mean_abs": None, "p99_abs": None, "max_abs": None}
    n = len(differences)
    top = heapq.nlargest(n - int(0.99 * (n - 1)), differences)
    return {"tokens": n, "mean_abs": math.fsum(differences) / n, "p99_abs": top[-1], "max_abs": top[0]}


def _revised(token: Compared) -> float:
    """Its difference by decoding if that gives what was recorded, else by prefill."""
    decoded = math.inf if token.decoded is None else abs(token.recorded - token.decoded)
    return decoded if decoded <= ROUNDING[0] else token.difference


class Report:
    """The sum of all results."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.total = Result("all")

    def add(self, result: Result) -> None:
        self.trajectories += 1
        self.total.differences.extend(result.differences)
        self.total.skipped.update(result.skipped)
        self.total.shifted += result.shifted
        for shift, value in result.shifts.items():
            self.total.shifts[shift] += value
        self.total.worst = furthest([*self.total.worst, *result.worst])

    def revise(self, decode: Callable[[Compared], float | None]) -> None:
        """Have the worst tokens of a good file decoded as well, if rounding may be what sets them apart: then they are
        rare. It changes the largest difference and nothing else."""
        least, most = ROUNDING
        numbers = spread(self.total.differences)
        if numbers["tokens"] and not self._misfits() and numbers["p99_abs"] <= least:
            self.total.worst = [
                replace(token, decoded=decode(token)) if least < token.difference <= most else token
                for token in self.total.worst
            ]

    @property
    def shift(self) -> int:
        """How many positions later the scores fit the recorded logprobs best: twice as well as in place, or 0."""
        sums, n = self.total.shifts, self.total.shifted
        best = min(SHIFTS, key=lambda shift: (sums[shift], abs(shift)))
        return best if n and sums[0] / n > NOISE and sums[best] < sums[0] / 2 else 0

    def found(self) -> dict[str, Any]:
        """Everything, as JSON can say it."""
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
            "worst": [token.told() for token in worst],
            "verdict": self.verdict,
        }

    @property
    def verdict(self) -> str:
        if self._misfits():
            return "bad"
        return "incomplete" if self._gaps() else "ok"

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not ok, in words."""
        return [*self._misfits(), *self._gaps()]

    def _misfits(self) -> list[str]:
        numbers, found = spread(self.total.differences), []
        if numbers["tokens"] and numbers["mean_abs"] > MEAN:
            found.append(f"the mean difference is {numbers['mean_abs']:.4f}, above {MEAN:g}")
        if numbers["tokens"] and numbers["p99_abs"] > P99:
            found.append(f"the 99th percentile is {numbers['p99_abs']:.4f}, above {P99:g}")
        if self.shift:
            direction = "later" if self.shift > 0 else "earlier"
            found.append(f"the recorded logprobs fit the tokens one position {direction}")
        return found

    def _gaps(self) -> list[str]:
        compared, skipped = len(self.total.differences), self.total.skipped.total()
        enough = compared >= COMPARED * max(1, compared + skipped)
        return [] if enough else [f"{compared} of {compared + skipped} sampled tokens could be compared"]
