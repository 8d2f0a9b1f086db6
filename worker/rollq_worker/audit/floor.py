"""The engine's own noise: how far its prefill is from its decoding, for tokens that it sampled during the audit.

The invariant: nothing of the file's logprobs is in it. It knows nothing of the verdict.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rollq.job import Json
from rollq_worker.audit.comparison import ComparisonResult, DistinctTokens
from rollq_worker.audit.exported_file import ExportedTrajectory
from rollq_worker.audit.significance import FEWEST, MARGIN
from rollq_worker.audit.token_classes import SampledTurn, Tally, TokenClass

TURNS = 64
"""Number of turns that the engine decodes again."""
SHARE = 0.001
"""Share of outliers that is no fault: one token in thousands may be far off where two logits are close."""


def spread(differences: Sequence[float]) -> dict[str, Json]:
    """Number, mean, 99th percentile (the nearest rank below) and maximum; None if there are no differences."""
    if not differences:
        return {"tokens": 0, "mean_abs": None, "p99_abs": None, "max_abs": None}
    n = len(differences)
    top = heapq.nlargest(n - int(0.99 * (n - 1)), differences)
    return {"tokens": n, "mean_abs": math.fsum(differences) / n, "p99_abs": top[-1], "max_abs": top[0]}


def turns_to_decode(
    trajectories: Iterable[ExportedTrajectory], count: int
) -> Iterator[tuple[ExportedTrajectory, SampledTurn]]:
    """TURNS turns from all over a file of `count` trajectories. Every second one is a trajectory's first."""
    wanted = Counter(i * count // TURNS for i in range(TURNS))
    done = 0
    for number, trajectory in enumerate(trajectories):
        if wanted[number] and (turns := list(trajectory.turns())):
            later = turns[1:] or turns
            for n in range(done, done + wanted[number]):
                yield trajectory, later[n // 2 % len(later)] if n % 2 else turns[0]
            done += wanted[number]


class Floor:
    """The sum of the comparisons of the engine's own tokens."""

    def __init__(self, results: Iterable[ComparisonResult]) -> None:
        self.differences = array("d")
        """Of each distinct token, in nats."""
        self.whole = Tally()
        self.classes = {kind: Tally() for kind in TokenClass}
        self.skipped = Counter[str]()
        distinct = DistinctTokens()
        for result in results:
            self.skipped.update(result.skipped)
            for _, kind, difference in distinct.of(result):
                self.differences.append(difference)
                self.classes[kind].add(difference, math.inf)
                self.whole.add(difference, math.inf)
        self.numbers = spread(self.differences)
        # 0.125 nats are one rounding step of a bf16 logit, for logits up to 32.
        self.outlier = max(0.125, MARGIN * (self.numbers["p99_abs"] or 0.0))
        """Tokens that are farther off, in nats, are outliers."""
        beyond = sum(difference > self.outlier for difference in self.differences)
        # Laplace's rule of succession: a short look has seen few outliers.
        self.share = max(SHARE, MARGIN * (beyond + 1) / (len(self.differences) + 2))
        """The largest share of outliers that is no fault."""

    def of(self, kind: TokenClass) -> Tally:
        """The noise of a class; that of all tokens if it was hardly seen."""
        return self.classes[kind] if self.classes[kind].tokens >= FEWEST else self.whole
