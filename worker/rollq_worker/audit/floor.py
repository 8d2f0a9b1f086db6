"""The engine's own noise: the differences between its prefill and its decoding of tokens that it
samples during the audit.

The invariant: nothing of the file's logprobs is in it. It knows nothing of the verdict.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rollq.job import Json
from rollq_worker.audit.comparison import ComparisonResult
from rollq_worker.audit.exported_file import ExportedTrajectory
from rollq_worker.audit.significance import FEWEST, MARGIN
from rollq_worker.audit.token_classes import Place, SampledTurn, Tally, TokenClass, note_repeats

TURNS = 64
"""Number of turns that the engine decodes again."""
QUIET = 0.001
"""A mean in nats too small to tell noise apart."""
SHARE = 0.001
"""Share of outliers that is not a fault: one token in thousands may be far off where two logits are
close.
"""


def spread(differences: Sequence[float]) -> dict[str, Json]:
    """Number, mean, 99th percentile (the nearest rank below) and maximum; None if there are no
    differences.
    """
    if not differences:
        return {"tokens": 0, "mean_abs": None, "p99_abs": None, "max_abs": None}
    n = len(differences)
    top = heapq.nlargest(n - int(0.99 * (n - 1)), differences)
    return {
        "tokens": n,
        "mean_abs": math.fsum(differences) / n,
        "p99_abs": top[-1],
        "max_abs": top[0],
    }


def turns_to_decode(
    trajectories: Iterable[ExportedTrajectory], count: int
) -> Iterator[tuple[ExportedTrajectory, SampledTurn]]:
    """TURNS turns from all over a file of `count` trajectories. Every second one is a trajectory's
    first.
    """
    wanted = Counter(i * count // TURNS for i in range(TURNS))
    done = 0
    for number, trajectory in enumerate(trajectories):
        turns = list(trajectory.turns()) if wanted[number] else []
        if not turns:
            continue
        later = turns[1:] or turns
        for n in range(done, done + wanted[number]):
            is_first = n % 2 == 0
            yield trajectory, turns[0] if is_first else later[n // 2 % len(later)]
        done += wanted[number]


class Floor:
    """The sum of the comparisons of the engine's own tokens."""

    def __init__(self, results: Iterable[ComparisonResult]) -> None:
        self.differences = array("d")
        """Difference of each token in nats."""
        self.skipped = Counter[str]()
        places: list[Place] = []
        for result in results:
            self.differences.extend(result.differences)
            self.skipped.update(result.skipped)
            places += result.places
        self.numbers = spread(self.differences)
        # 0.125 nats are one rounding step of a bf16 logit, for logits up to 32.
        self.outlier = max(0.125, MARGIN * (self.numbers["p99_abs"] or 0.0))
        """Tokens that are farther off, in nats, are outliers."""
        self.classes = {kind: Tally() for kind in TokenClass}
        for place in places:
            self.classes[place.kind].add(place.difference, self.outlier)
        note_repeats(self.classes, places)
        self.all_tokens = Tally()
        for tally in self.classes.values():
            self.all_tokens.join(tally)

    def of(self, kind: TokenClass) -> Tally:
        """The noise of a class, or of all tokens if few of the class were seen."""
        noise = self.classes[kind]
        return noise if noise.tokens >= FEWEST else self.all_tokens

    def share(self, kind: TokenClass | None = None) -> float:
        """The largest share of outliers that is not a fault: of all tokens, or of a class that is
        clearly noisier.
        """
        noise = self.classes[kind] if kind and self._is_noisier(kind) else self.all_tokens
        tokens = noise.tokens * noise.independent
        outliers = noise.outliers * noise.independent
        # Laplace's rule of succession: a short look has seen few outliers.
        return max(SHARE, MARGIN * (outliers + 1) / (tokens + 2))

    def _is_noisier(self, kind: TokenClass) -> bool:
        # A policy may be sure of all tokens but those that decide what to do, which are the first
        # of a turn.
        noise = self.classes[kind]
        if noise.tokens < FEWEST:
            return False
        least = noise.mean - 2 * math.sqrt(noise.variance_of_mean)
        return least > max(QUIET, MARGIN * self.all_tokens.mean)
