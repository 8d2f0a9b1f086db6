"""Estimates over tasks: a mean with its standard error and a confidence interval, and pass^k.

Tasks are the independent units. Tries at one task share its difficulty, so an error over all tries
would be too small (arXiv 2411.00640, section 2.2). Pure, standard library only.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean, stdev

SUCCESS = 1.0 - 1e-6
"""The reward from which a try counts as a success (tau_bench/run.py: within 1e-6 of 1)."""
CONFIDENCE = 0.95
RESAMPLES, FEWEST_RESAMPLES = 10_000, 1_000
MOST_DRAWS = 1_000_000
"""Tasks drawn for one interval, over all resamples. It takes about a tenth of a second."""
SEED = 0
"""Fixed, so that the same result always has the same interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of one number per task."""

    mean: float
    stderr: float | None = None
    """Standard error of the mean: the standard deviation over tasks (divided by n - 1), divided by
    sqrt(n). None for fewer than two tasks, as are `low` and `high`.
    """
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    """Upper end of the 95 % interval."""


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of `values`, one per task, with its error. None when there are none.

    The interval is the percentile bootstrap over tasks (Efron and Tibshirani, An Introduction to
    the Bootstrap, 1993, section 13.3): from 2.5 % to 97.5 % of the means of `resamples(n)` draws of
    n tasks out of n, with replacement.
    """
    n = len(values)
    if n == 0:
        return None
    if n == 1:
        return Estimate(values[0])
    draw = random.Random(SEED)
    means = sorted(sum(draw.choices(values, k=n)) / n for _ in range(resamples(n)))
    outside = round((1 - CONFIDENCE) / 2 * len(means))
    return Estimate(fmean(values), stdev(values) / sqrt(n), means[outside], means[-1 - outside])


def resamples(n: int) -> int:
    """Number of resamples of n tasks. Fewer above 100 tasks, where an evaluation with many tries
    has many intervals to compute; 1,000 resamples put the ends within a few percent of the
    interval's width.
    """
    return max(FEWEST_RESAMPLES, min(RESAMPLES, MOST_DRAWS // n))


def pass_hat(successes: int, tries: int, k: int) -> float:
    """The chance that k tries at a task all succeed, estimated from `successes` in `tries`.

    C(successes, k) / C(tries, k), which is unbiased (tau-bench, arXiv 2406.12045, section 4.1). k
    is at most `tries`.
    """
    return comb(successes, k) / comb(tries, k)
