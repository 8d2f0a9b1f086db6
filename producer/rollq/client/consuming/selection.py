"""Makes up a batch: reads the groups that are held for it, rewards them, and says which of them the
filter keeps.

Every group is read and judged once, however often the batch is filled up. It changes nothing in
Redis.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

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

    def look(self, taken: Sequence[TakenGroup], *, redelivered: bool) -> list[str]:
        """Ids of the groups that the batch does not keep. Those that it knows are not read again,
        and those that are no longer held are forgotten.

        Raises UnreadableJob, FunctionError, and what reading raises. A later call then goes on with
        the same groups.
        """
        unwanted = []
        self._groups = {
            found.id: self._groups[found.id] for found in taken if found.id in self._groups
        }
        for found in taken:
            if found.id in self._groups:
                continue
            group = self._group(found, redelivered=redelivered or found.handed > 0)
            if self._where and not self._where.keeps(group):
                unwanted.append(found.id)
            else:
                self._groups[found.id] = group
        return unwanted

    def groups(self, taken: Sequence[TakenGroup]) -> list[Group]:
        """The groups of the batch, in their order."""
        return [self._groups[found.id] for found in taken]

    def leave_out(self, ids: Sequence[str]) -> None:
        """The batch does not keep these groups, either."""
        self._groups = {id: group for id, group in self._groups.items() if id not in ids}

    def clear(self) -> None:
        """The next batch begins."""
        self._groups = {}

    def _group(self, taken: TakenGroup, *, redelivered: bool) -> Group:
        read = self._read(taken.members)
        for job_id, found in zip(taken.members, read, strict=True):
            if isinstance(found, ContractError):
                error = UnreadableJob(str(found))
                error.job_id = job_id
                raise error
        played = cast(Sequence[Trajectory], read)
        group = Group(
            id=taken.id,
            seq=taken.seq,
            size=taken.size,
            trajectories=[
                replace(it, job=it.job.member(it.job.sample, taken.seq)) for it in played
            ],
            dead=taken.dead,
            redelivered=redelivered,
            started_step=taken.started,
        )
        return self._reward.apply(group) if self._reward else group
