"""A batch: the groups of one training step, held until acknowledged. Pure values; the client talks to Redis."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollq.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The n samples of one task, as GRPO compares them. Nothing stands in for members that have no reward."""

    id: str
    """Unique in its run. A group that is handed out again keeps its id."""
    seq: int
    size: int
    trajectories: Sequence[Trajectory]
    """The graded members only, by sample number."""
    dead: Sequence[str] = ()
    """Job ids of the members without a reward."""
    redelivered: bool = False
    """Whether an earlier batch held it. A consumer that died or lost it may have trained on it."""

    @property
    def rewards(self) -> list[float]:
        """One per trajectory."""
        return [t.reward for t in self.trajectories if t.reward is not None]

    @property
    def advantages(self) -> list[float]:
        """One per trajectory: its reward minus the group's mean, over the group's standard deviation (GRPO, arXiv
        2402.03300, section 4.1.2). All 0.0 when the rewards agree."""
        rewards = self.rewards
        if not rewards:
            return []
        mean = sum(rewards) / len(rewards)
        deviation = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
        return [(r - mean) / deviation if deviation > 1e-8 else 0.0 for r in rewards]


@dataclass(slots=True, kw_only=True)
class Batch:
    """The groups of one training step. Unless they are acknowledged, they go to the next consumer that asks."""

    step: int
    """Counts the batches of this consumer, from 0. The ledger counts those of a named consumer, so its successor goes
    on from there."""
    groups: Sequence[Group]
    """Those that were not skipped."""
    on_ack: Callable[[], None] = field(repr=False)
    on_skip: Callable[[str, str], None] = field(repr=False)
    on_reject: Callable[[str, str], None] = field(repr=False)

    def ack(self) -> None:
        """Tell the ledger that the groups are trained on, so that no consumer gets them again.

        Safe to repeat. Raises NotHeld when the hold was lost: the groups were or will be given to another consumer.
        """
        self.on_ack()

    def skip(self, group_id: str, reason: str) -> None:
        """Do not train on this group, for example because all its rewards agree. It leaves the batch, counts under the
        reason (`stats()["skips"]`) and is not handed out again; the other groups stay.

        Safe to repeat. `reason` is one of few, of up to 64 characters; ContractError says so. Raises NotHeld when the
        group is not of this batch, or the hold was lost.
        """
        self.on_skip(group_id, reason)
        self.groups = [group for group in self.groups if group.id != group_id]

    def reject(self, job_id: str, reason: str) -> None:
        """Refuse the batch because one trajectory cannot be used, for example because its texts cannot be read.

        The trajectory's job is dead, of class job. The batch's groups are handed out again; the job's own group only if
        it is still viable. Raises NotHeld when the hold was lost.
        """
        self.on_reject(job_id, reason)

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of all groups, in order. The lists below have one entry for each."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def tokens(self) -> list[array[int]]:
        """One array('I') per trajectory."""
        return [trajectory.tokens for trajectory in self.trajectories]

    @property
    def mask(self) -> list[bytes]:
        """Bytes per trajectory: 1 for each token that the policy sampled, else 0."""
        return [trajectory.mask for trajectory in self.trajectories]

    @property
    def logprobs(self) -> list[array[float]]:
        """One array('f') per trajectory: 0.0 where the mask is 0."""
        return [trajectory.logprobs for trajectory in self.trajectories]

    @property
    def advantages(self) -> list[float]:
        """One per trajectory, normalised in its group (GRPO)."""
        return [advantage for group in self.groups for advantage in group.advantages]
