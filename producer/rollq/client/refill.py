"""Fresh groups in place of dropped ones: those that kept too few graded members to be handed out.

The replacement of group `g` is called `g.r1`, the next one `g.r2`, so that a restarted producer finds them again.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rollq.errors import ContractError
from rollq.job import Job
from rollq.ledger.reader import LedgerView

STRIDE = 1_000_003
"""Between the seeds of a group and of its replacement: epochs count up by 1, and engines take 32 bits."""
PAGE = 1000
"""Groups that are looked at in one round trip."""
LONGEST_S = 2.0


@dataclass(slots=True)
class Watched:
    """A group and which replacement it is; 0: the original."""

    jobs: Sequence[Job]
    turn: int = 0

    @property
    def name(self) -> str:
        return replacement(self.jobs[0], self.turn).group

    @property
    def samples(self) -> list[Job]:
        return [replacement(job, self.turn) for job in self.jobs]


def replacement(job: Job, turn: int) -> Job:
    """The job in its place in the group's replacement of that number; 0: the job itself. Raises ContractError."""
    return replace(job, group=f"{job.group}.r{turn}", seed=job.seed + turn * STRIDE) if turn else job


def dropped(ledger: LedgerView, groups: Sequence[Sequence[Job]], times: int) -> Iterator[list[Job]]:
    """Waits until all groups are settled; yields the replacement of each that is dropped, to be submitted at once.

    A task is replaced at most `times` times. Raises ContractError for a group that was never submitted.
    """
    open_groups = [Watched(jobs) for jobs in groups]
    pause = 0.05
    while open_groups:
        still: list[Watched] = []
        for start in range(0, len(open_groups), PAGE):
            page = open_groups[start : start + PAGE]
            for found, state in zip(page, ledger.group_states([found.name for found in page]), strict=True):
                if state == "dropped" and found.turn < times:
                    following = Watched(found.jobs, found.turn + 1)
                    yield following.samples
                    still.append(following)
                elif state == "open":
                    still.append(found)
                elif not state:
                    raise ContractError(f"group {ledger.run}/{found.name} was never submitted, or its record is gone")
        open_groups = still
        if open_groups:
            time.sleep(pause)
            pause = min(LONGEST_S, pause * 1.5)
