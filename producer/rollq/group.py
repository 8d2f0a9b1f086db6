"""A group: the graded samples of one task, with the ids of the members that died. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass

from rollq.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The n samples of one task, as GRPO compares them. Never holds a filler: a dead member is an id in `dead`."""

    id: str
    """Unique in its run; the same id again means the same group again."""
    seq: int
    size: int
    trajectories: Sequence[Trajectory]
    """Graded ones only, by sample number."""
    dead: Sequence[str] = ()
    """Job ids of the members without a reward."""

    @property
    def rewards(self) -> list[float]:
        """One a trajectory."""
        return [t.reward for t in self.trajectories if t.reward is not None]

    @property
    def advantages(self) -> list[float]:
        """Reward minus the group's mean over its standard deviation (GRPO, arXiv 2402.03300, section 4.1.2), one a
        trajectory; all 0.0 when the rewards agree."""
        rewards = self.rewards
        if not rewards:
            return []
        mean = sum(rewards) / len(rewards)
        deviation = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
        return [(r - mean) / deviation if deviation > 1e-8 else 0.0 for r in rewards]
