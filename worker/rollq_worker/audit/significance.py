"""Bounds on counts and means that chance explains. Pure numbers.

The errors of a file are many small groups of tokens (turns, trajectories, classes), and each is
tested. So that a correct file passes in 999 of 1,000 audits, `LEVEL` is divided by the number of
tests (Bonferroni's correction).
"""

from __future__ import annotations

import math
from statistics import NormalDist

from rollq_worker.audit.token_classes import Tally

LEVEL = 0.001
"""Share of correct files that may be called bad."""
MARGIN = 1.5
"""Factor by which a correct file may be noisier than the engine: it was sampled under another load.
"""
FEWEST = 30
"""Number of tokens from which a mean is taken for normally distributed."""


def chance(outliers: float, tokens: float, share: float) -> float:
    """A bound on the probability of so many outliers or more, where each token is one with
    probability `share`.

    exp(-n D), with the relative entropy D of the seen and the expected share: W. Hoeffding,
    Probability inequalities for sums of bounded random variables, 1963, theorem 1.
    """
    seen = outliers / tokens
    if seen <= share:
        return 1.0
    rest = (1 - seen) * math.log((1 - seen) / (1 - share)) if seen < 1 else 0.0
    return math.exp(-tokens * (seen * math.log(seen / share) + rest))


def fewest_outliers(tokens: int, share: float, level: float) -> int | None:
    """The smallest number of outliers that chance does not explain at that level; None if even all
    of them prove nothing.
    """
    return next((n for n in range(1, tokens + 1) if chance(n, tokens, share) < level), None)


def highest_mean(tally: Tally, floor: Tally, level: float) -> float:
    """The highest mean difference that MARGIN times the floor and chance explain at that level;
    none for few tokens.

    Both means are taken from samples of unequal variance: B. L. Welch, The generalization of
    "Student's" problem when several different population variances are involved, 1947, for many
    tokens.
    """
    if min(tally.tokens, floor.tokens) < FEWEST:
        return math.inf
    deviation = math.sqrt(tally.variance_of_mean + MARGIN**2 * floor.variance_of_mean)
    return MARGIN * floor.mean + NormalDist().inv_cdf(1 - level) * deviation
