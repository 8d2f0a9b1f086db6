"""Makes up a batch: reads the groups that are held for it, rewards them, and says which of them the
filter keeps.

Every group is read and judged once, however often the batch is filled up. It changes nothing in
Redis.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rollq.batch import Group
from rollq.client.consuming.functions import Filter, RewardFunction
from rollq.errors import ContractError
from rollq.ledger.replies import TakenGroup
from rollq.trajectory import Trajectory

Read = Callable[[Sequence[str]], Sequence[Trajectory | ContractError]]
"""Reads the trajectories of these jobs: `LedgerReader.read`."""


class UnreadableJob(ContractError):
    """A trajectory cannot be read, so its job is rejected."""

    job_id: str = ""


class Selection:
    """The groups of the batch that a consumer makes up."""

    def __init__(self, read: Read, where: Filter | None, reward: RewardFunction | None) -> None:
        self._read = read
        self._where = where
        self._reward = reward
        self._groups: dict[str, Group] = {}
        """The groups that the batch keeps, by id."""

    @property
    def reason(self) -> str:
        """The filter's name, under which groups that it leaves out are counted."""
        return self._where.name if self._where else ""

    def __len__(self) -> int:
        """Number of groups so far."""
        return len(self._groups)

    def unwanted(self, taken: Sequence[TakenGroup], *, redelivered: bool) -> list[str]:
        """Ids of the groups that the batch does not keep. Those that it knows are not read again,
        and those that are no longer held are forgotten.

        Raises UnreadableJob, FunctionError, and what reading raises. A later call then goes on with
        the same groups.
        """
        unwanted = []
        before = self._groups
        self._groups = {}
        for held in taken:
            if held.id in before:
                self._groups[held.id] = before[held.id]
        for held in taken:
            if held.id in self._groups:
                continue
            group = self._group(held, redelivered=redelivered or held.handed > 0)
            if self._where and not self._where.keeps(group):
                unwanted.append(held.id)
            else:
                self._groups[held.id] = group
        return unwanted

    def groups(self, taken: Sequence[TakenGroup]) -> list[Group]:
        """The groups of the batch, in their order."""
        return [self._groups[held.id] for held in taken]

    def leave_out(self, ids: Sequence[str]) -> None:
        """The batch does not keep these groups, either."""
        self._groups = {id: group for id, group in self._groups.items() if id not in ids}

    def clear(self) -> None:
        """The next batch begins."""
        self._groups = {}

    def _group(self, taken: TakenGroup, *, redelivered: bool) -> Group:
        trajectories = []
        results = self._read(taken.members)
        for job_id, trajectory in zip(taken.members, results, strict=True):
            if isinstance(trajectory, ContractError):
                error = UnreadableJob(str(trajectory))
                error.job_id = job_id
                raise error
            job = trajectory.job
            trajectories.append(replace(trajectory, job=job.member(job.sample, taken.seq)))
        group = Group(
            id=taken.id,
            seq=taken.seq,
            size=taken.size,
            trajectories=trajectories,
            dead=taken.dead,
            redelivered=redelivered,
            started_step=taken.started,
        )
        return self._reward.apply(group) if self._reward else group
