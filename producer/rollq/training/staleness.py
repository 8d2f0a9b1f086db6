"""Age of a batch's tokens: the steps from the policy that sampled a token to the one that
trains on it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollq.events import Sampled
from rollq.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Over the sampled tokens whose version has a known step, in training steps.

    It is below 0 where a trainer went back to a checkpoint and the tokens are of a later policy.
    """

    max: int | None
    """None when the step of any token is not known: it may be the oldest."""
    mean: float | None
    """Over the tokens whose step is known, not over trajectories. None when none is."""
    unknown_tokens: int
    """Number of sampled tokens whose version was never published."""


def version_tokens(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """Number of tokens that each weight version sampled, by the engine's names."""
    tokens = Counter[str]()
    for trajectory in trajectories:
        for event in trajectory.events:
            for span in event.versions if isinstance(event, Sampled) else ():
                tokens[span.version] += span.end - span.start
    return tokens


def staleness(
    trajectories: Iterable[Trajectory], policy_step: int | None, version_steps: Mapping[str, int]
) -> Staleness:
    """The staleness of tokens that the policy of `policy_step` trains on. None: no step
    is known.
    """
    tokens = version_tokens(trajectories)
    ages: dict[str, int] = {}
    for name in tokens:
        if policy_step is not None and name in version_steps:
            ages[name] = policy_step - version_steps[name]
    dated = sum(tokens[name] for name in ages)
    undated = tokens.total() - dated
    age_sum = sum(age * tokens[name] for name, age in ages.items())
    return Staleness(
        max=None if undated else max(ages.values(), default=0),
        mean=age_sum / dated if dated else None,
        unknown_tokens=undated,
    )
