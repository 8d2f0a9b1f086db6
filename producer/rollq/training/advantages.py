"""Advantages: how much better each member of a group did than its siblings.

Each estimator takes the rewards of a group's graded members and returns one advantage for each. A
dead member has no reward, so it has no advantage and enters no mean. Members whose rewards agree,
and a member alone, get 0.0. Standard library only.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from rollq.errors import ContractError

EQUAL = 1e-8
"""A standard deviation up to this is rounding: the rewards agree."""


def grpo(rewards: Sequence[float]) -> list[float]:
    """`(r_i - mean(r)) / std(r)`: group relative policy optimization (DeepSeekMath, arXiv
    2402.03300, section 4.1.2, outcome supervision).

    `std` divides by n. Trainers that divide by n - 1, as `torch.std` does, get advantages smaller
    by the factor `sqrt((n - 1) / n)`.
    """
    return scaled(dr_grpo(rewards), rewards)


def scaled(gaps: Sequence[float], rewards: Sequence[float]) -> list[float]:
    """These advantages over the standard deviation of the rewards; 0.0 where the rewards agree."""
    deviation = math.hypot(*dr_grpo(rewards)) / math.sqrt(len(rewards) or 1)
    return [gap / deviation if deviation > EQUAL else 0.0 for gap in gaps]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """`r_i - mean(r)`: GRPO done right (Understanding R1-Zero-Like Training, arXiv 2503.20783,
    section 3.2), which does not divide by the standard deviation.

    Its loss does not divide by a response's length either. That part is the trainer's.
    """
    if not rewards or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """`r_i - sum of r_j for j other than i / (n - 1)`: REINFORCE leave-one-out (the RLOO estimator
    of Back to Basics, arXiv 2402.14740, after Kool et al. 2019).

    The others' mean is a baseline that does not depend on the member's own reward. It is Dr. GRPO
    times `n / (n - 1)`.
    """
    n = len(rewards)
    return [gap * n / (n - 1) if n > 1 else 0.0 for gap in dr_grpo(rewards)]


ESTIMATORS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
}
"""Estimators by name."""


def estimate(rewards: Sequence[float], estimator: str) -> list[float]:
    """The advantages of one group by the estimator of that name. Raises ContractError for a name
    that is not in ESTIMATORS.
    """
    check_estimator(estimator)
    return ESTIMATORS[estimator](rewards)


def check_estimator(name: object) -> None:
    """Raises ContractError for a name that is not in ESTIMATORS."""
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise ContractError(f"no advantages {name!r}: the estimators are {', '.join(ESTIMATORS)}")
