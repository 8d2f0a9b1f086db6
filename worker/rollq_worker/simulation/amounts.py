"""How many and how long: a fixed amount, or one drawn from a lognormal distribution.

Mean and 99th percentile determine a lognormal distribution. Which of the two that do is the narrower one, because its
99th percentile is the one that people mean: the wider one has nearly all of its mass far below its mean.
"""

import math
from dataclasses import dataclass
from random import Random

Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""
WIDEST = math.exp(Z99**2 / 2)
"""The largest ratio of a lognormal distribution's 99th percentile to its mean, 14.97."""


@dataclass(frozen=True, slots=True)
class Amount:
    """`mean` with nothing else is a fixed amount."""

    mean: float
    p99: float = 0.0
    """0: every draw is the mean."""

    def draw(self, random: Random) -> float:
        if not self.p99 or not self.mean:
            return self.mean
        sigma = Z99 - math.sqrt(max(0.0, Z99**2 - 2 * math.log(self.p99 / self.mean)))
        return random.lognormvariate(math.log(self.mean) - sigma * sigma / 2, sigma)

    def whole(self, random: Random) -> int:
        """A whole number of at least 1. Where it varies, it is rounded at random, which keeps the mean."""
        value = self.draw(random)
        if self.p99 or value != int(value):
            value = math.floor(value + random.random())
        return max(1, int(value))
