"""A batch: the groups of one training step, held until acknowledged. Pure values; the client talks
to Redis.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollq.errors import ContractError, NotHeld
from rollq.job import Json
from rollq.numbers import whole_number
from rollq.training.advantages import estimate, grpo
from rollq.training.arrays import Row, pack, pad
from rollq.training.staleness import Staleness, staleness
from rollq.training.turn_credit import TurnCredit
from rollq.trajectory import Traces, Trajectory

if TYPE_CHECKING:
    from rollq.training.arrays import Numpy, PackedArrays, PaddedArrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The n samples of one task, as GRPO compares them. Nothing stands in for members that have no
    reward.
    """

    id: str
    """Unique in its run. A group that is handed out again keeps its id."""
    seq: int
    """Place in the order of submission."""
    size: int
    """Number of samples that were asked for."""
    trajectories: Sequence[Trajectory]
    """The graded members only, by sample number."""
    dead: Sequence[str] = ()
    """Job ids of the members without a reward."""
    redelivered: bool = False
    """True if an earlier batch held it. A consumer that died or lost it may have trained on it."""
    started_step: int | None = None
    """The published step when its first member was first claimed, or a lower one to which the
    trainer went back while the group was open. None if nothing was published (`Client.publish`).
    """
    scores: Sequence[float] | None = None
    """One per trajectory, by the consumer's reward function; None without one."""

    @property
    def rewards(self) -> list[float]:
        """One per trajectory: the scores, or else what the environments gave. Raises ContractError
        for a trajectory without one: it would shift those after it.
        """
        if self.scores is not None:
            return list(self.scores)
        rewards = [t.reward for t in self.trajectories if t.reward is not None]
        if len(rewards) != len(self.trajectories):
            ungraded = next(t.job.id for t in self.trajectories if t.reward is None)
            raise ContractError(
                f"job {ungraded}: it has no reward, so it is not a trajectory of a group"
            )
        return rewards

    def rewards_of(self, model: str) -> list[float]:
        """One per trajectory: the reward of that one of `Job.models` where the grade has one, else
        the episode's. With scores all agents have those.
        """
        if self.scores is not None:
            return list(self.scores)
        members = zip(self.trajectories, self.rewards, strict=True)
        return [trajectory.rewards.get(model, reward) for trajectory, reward in members]

    @property
    def advantages(self) -> list[float]:
        """One per trajectory, by GRPO. `rollq.training.advantages` has the other estimators."""
        return grpo(self.rewards)

    def turn_advantages(self, credit: TurnCredit) -> list[list[float]]:
        """One list per trajectory: the advantages of its turns, by their numbers
        (`Segment.turns`).
        """
        return credit.advantages(self.trajectories, self.rewards)


@dataclass(slots=True, kw_only=True)
class Batch:
    """The groups of one training step. Unless they are acknowledged, they go to the next consumer
    that asks.
    """

    step: int
    """Counts the batches of this consumer, from 0. The ledger counts those of a named consumer, so
    its successor goes on from there.
    """
    groups: Sequence[Group]
    """Groups that were not skipped."""
    on_ack: Callable[[], None] = field(repr=False)
    on_skip: Callable[[str, str], None] = field(repr=False)
    on_reject: Callable[[str, str], None] = field(repr=False)
    policy_step: int | None = None
    """The published step when the batch was taken. None if nothing was published."""
    version_steps: Mapping[str, int] = field(default_factory=dict)
    """The training step of each weight version that sampled the batch, where it is known: by
    `Client.publish`, or because its name is a whole number below a billion.
    """
    acknowledged: bool = field(default=False, init=False)
    _group_ids: frozenset[str] = field(init=False, repr=False)
    """Ids of the groups, with those that were skipped since."""

    def __post_init__(self) -> None:
        self._group_ids = frozenset(group.id for group in self.groups)

    def ack(self) -> None:
        """Tells the ledger that the groups are trained on, so that no consumer gets them again.

        Safe to repeat. Raises NotHeld when the hold was lost: the groups were or will be given to
        another consumer.
        """
        self.on_ack()
        self.acknowledged = True

    def skip(self, group_id: str, reason: str) -> None:
        """Leaves this group out of training, for example because all its rewards agree. It leaves
        the batch, counts under the reason (`stats()["skips"]`) and is not handed out again; the
        other groups stay.

        Safe to repeat. `reason` is one of few, of up to 64 characters; ContractError says so.
        Raises NotHeld when the group is not of this batch, or the hold was lost, or the batch is
        acknowledged.
        """
        if self.acknowledged:
            raise NotHeld(
                f"batch {self.step} is acknowledged, group {group_id} with it: skip before `ack`"
            )
        if group_id not in self._group_ids:
            raise NotHeld(f"group {group_id} is not of batch {self.step}")
        self.on_skip(group_id, reason)
        self.groups = [group for group in self.groups if group.id != group_id]

    def reject(self, job_id: str, reason: str) -> None:
        """Refuses the batch because one trajectory cannot be used, for example because its texts
        cannot be read.

        The trajectory's job is dead, of class job. The batch's groups are handed out again; the
        job's own group only if it is still viable. Raises NotHeld when the job is not of this
        batch, or the hold was lost.
        """
        if job_id not in {trajectory.job.id for trajectory in self.trajectories}:
            raise NotHeld(f"job {job_id} is not of batch {self.step}")
        self.on_reject(job_id, reason)

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of all groups, in order. The lists below have one entry for each.

        A trajectory with several traces (`history=template`, `context`) is several rows: train on
        its `segments()`, or on `arrays()`.
        """
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

    @property
    def rewards(self) -> list[float]:
        """One per trajectory."""
        return [reward for group in self.groups for reward in group.rewards]

    @property
    def group_indices(self) -> list[int]:
        """One per trajectory: the index of its group in `groups`."""
        return [index for index, group in enumerate(self.groups) for _ in group.trajectories]

    @property
    def staleness(self) -> Staleness:
        """Training steps that the policy that sampled the tokens is behind `policy_step`."""
        return staleness(self.trajectories, self.policy_step, self.version_steps)

    @property
    def labels(self) -> list[Mapping[str, Json]]:
        """One per trajectory: the labels of its job."""
        return [trajectory.job.labels for trajectory in self.trajectories]

    def arrays(
        self,
        *,
        pad_to: int | None = None,
        dtype: str = "int64",
        advantages: str | TurnCredit = "grpo",
        traces: Traces = "all",
        max_length: int | None = None,
    ) -> PaddedArrays[Numpy]:
        """numpy arrays of the shape (rows, length), padded on the right: to the longest row, or to
        `pad_to` tokens.

        One row per segment, in the order of the trajectories, so each sampled token is in them
        once. `dtype` is that of the token ids: int64 or int32. `advantages` is an estimator's name,
        grpo, dr_grpo or rloo, or credit by turn. `traces` chooses among the traces of each
        trajectory (`Trajectory.segments`). A row of more than `max_length` tokens is left out
        alone: its episode keeps its part in the advantages, and `left_out` counts it. `.torch()`
        makes tensors of them. `rollq.training.arrays.PaddedArrays` lists the arrays with their
        shapes and dtypes.

        Raises SettingsError when numpy is not installed, ContractError when a row is longer than
        `pad_to`, and what `Trajectory.segments` raises.
        """
        if pad_to is not None:
            whole_number("pad_to", pad_to, at_least=0)
        rows, left_out = self._rows(advantages, traces, max_length)
        return pad(
            rows,
            pad_to=pad_to,
            dtype=dtype,
            by_turn=isinstance(advantages, TurnCredit),
            version_steps=self.version_steps,
            left_out=left_out,
        )

    def packed(
        self,
        *,
        dtype: str = "int64",
        advantages: str | TurnCredit = "grpo",
        traces: Traces = "all",
        max_length: int | None = None,
    ) -> PackedArrays[Numpy]:
        """The rows of `arrays` end to end, without padding:
        `rollq.training.arrays.PackedArrays`.
        """
        rows, left_out = self._rows(advantages, traces, max_length)
        return pack(
            rows,
            dtype=dtype,
            by_turn=isinstance(advantages, TurnCredit),
            version_steps=self.version_steps,
            left_out=left_out,
        )

    def _rows(
        self, advantages: str | TurnCredit, traces: Traces, max_length: int | None
    ) -> tuple[list[Row], int]:
        """The rows, and the number of those that are too long."""
        if max_length is not None:
            whole_number("max_length", max_length, at_least=1)
        rows: list[Row] = []
        first = 0
        for index, group in enumerate(self.groups):
            rows += _rows_of(group, index, first, advantages, traces)
            first += len(group.trajectories)
        kept = [row for row in rows if max_length is None or row.length <= max_length]
        return kept, len(rows) - len(kept)


def _rows_of(
    group: Group, index: int, first: int, advantages: str | TurnCredit, traces: Traces
) -> Iterator[Row]:
    """The rows of the group of that index, whose first trajectory has the index `first`. A row is
    compared with its siblings' rewards of the same model.
    """
    segments = [trajectory.segments(traces) for trajectory in group.trajectories]
    credits = {}
    for model in {"", *(segment.model for own in segments for segment in own)}:
        rewards = group.rewards_of(model)
        credits[model] = list(zip(rewards, _advantages(group, rewards, advantages), strict=True))
    for member, own in enumerate(segments):
        for segment in own:
            reward, advantage = credits[segment.model][member]
            yield Row(
                segment=segment,
                job_id=segment.trajectory.job.id,
                trajectory=first + member,
                group=index,
                reward=reward,
                advantage=advantage,
            )


def _advantages(
    group: Group, rewards: Sequence[float], advantages: str | TurnCredit
) -> Sequence[float | Sequence[float]]:
    """One per trajectory, or for each trajectory one per turn."""
    if isinstance(advantages, TurnCredit):
        return advantages.advantages(group.trajectories, rewards)
    return estimate(rewards, advantages)
