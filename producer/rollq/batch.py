"""A batch: the groups of one training step, held until acknowledged. Pure values; the client talks to Redis."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups of one training step. Unless `ack` is called, they go to the next consumer that asks."""

    step: int
    """Counts the batches of this iteration, from 0."""
    groups: Sequence[Group]
    on_ack: Callable[[], None] = field(repr=False)
    on_reject: Callable[[str, str], None] = field(repr=False)

    def ack(self) -> None:
        """Tell the ledger that the groups are trained on, so that no consumer gets them again.

        Safe to repeat. Raises NotHeld when the hold was lost: the groups were or will be given to another consumer.
        """
        self.on_ack()

    def reject(self, job_id: str, reason: str) -> None:
        """One of its trajectories cannot be used, for example because its texts cannot be read: that job is dead.

        Its class is job. The batch is held no more, and its groups come again; that job's own only if it is viable.
        Raises NotHeld when the hold was lost.
        """
        self.on_reject(job_id, reason)

    @property
    def trajectories(self) -> list[Trajectory]:
        """Of all groups, in order; the lists below run parallel to it."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def tokens(self) -> list[array[int]]:
        """array('I') a trajectory."""
        return [trajectory.tokens for trajectory in self.trajectories]

    @property
    def mask(self) -> list[bytes]:
        """One byte a token: 1 where the policy sampled it."""
        return [trajectory.mask for trajectory in self.trajectories]

    @property
    def logprobs(self) -> list[array[float]]:
        """array('f') a trajectory: 0.0 where the mask is 0."""
        return [trajectory.logprobs for trajectory in self.trajectories]

    @property
    def advantages(self) -> list[float]:
        """One a trajectory, normalised in its group (GRPO)."""
        return [advantage for group in self.groups for advantage in group.advantages]
