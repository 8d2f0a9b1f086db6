"""What a producer submits: whole groups, in the same order after a restart, and replacements of dropped groups.

Names follow from the jobs alone, so a restarted producer finds its groups again: `g.r1` is the first replacement of
group `g`, `g.r2` the next. This module submits nothing itself; `rollq.client.client` does.
"""

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rollq.errors import ContractError, JobConflict
from rollq.job import NAME_CHARACTERS, Job
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Cursor
from rollq.wire.codec import job_digest

SEED_STRIDE = 1_000_003
"""Difference between the seeds of a group and of its replacement. Epochs count seeds up by 1, and engines take 32
bits."""
PAGE = 1000
"""Number of groups whose states are read in one round trip."""
LONGEST_PAUSE_S = 2.0
"""Longest time in seconds between two looks at groups that are not settled."""


def group_name(env: str, split: str, task: int, epoch: int = 0) -> str:
    """The name of a task's group. Characters that a name may not have become `-`."""
    base = re.sub(rf"[^{NAME_CHARACTERS}]", "-", f"{env}.{split}.{task}")
    return f"{base}.e{epoch}" if epoch else base


def whole_groups(jobs: Iterable[Job], run: str) -> Iterator[list[Job]]:
    """Whole groups of jobs, with run and group filled in. Each group is yielded before the next job is asked for.

    A lone sample 0 stands for its whole group. Raises ContractError for a job of another run.
    """
    group: list[Job] = []
    for index, job in enumerate(jobs):
        job = _named(job, run, index)
        if group and job.group != group[0].group:
            yield _all_samples(group)
            group = []
        group.append(job)
        if len(group) == job.size:
            yield group
            group = []
    if group:
        yield _all_samples(group)


def _named(job: Job, run: str, index: int) -> Job:
    try:
        if job.run and job.run != run:
            raise ContractError(f"{job.title}: belongs to run {job.run}, this client is of run {run}")
        return replace(job, run=run, group=job.group or group_name(job.env, job.split, job.task))
    except ContractError as e:
        raise ContractError(f"jobs[{index}]: {e}") from e


def _all_samples(group: list[Job]) -> list[Job]:
    first = group[0]
    if len(group) > 1 or first.sample:
        return group
    return [replace(first, sample=sample) for sample in range(first.size)]


class SourceReader:
    """Reads a source, which is a sequence of groups that is always the same, and tells which were submitted before.

    The ledger keeps how far the source was submitted, and a digest of the groups up to there.
    """

    def __init__(self, name: str, submitted: Cursor) -> None:
        self.name = name
        self._submitted = submitted
        self._groups = self._jobs = 0
        self._digest = hashlib.sha256()

    @property
    def cursor(self) -> Cursor:
        """The position after the groups that were read so far."""
        return Cursor(self._groups, self._jobs, self._digest.hexdigest())

    def was_submitted(self, group: Sequence[Job]) -> bool:
        """Reads the next group, and tells whether it was submitted before.

        Raises JobConflict when the groups submitted before were others than those read so far.
        """
        self._groups += 1
        self._jobs += len(group)
        first = group[0]
        self._digest.update(job_digest(first))
        for job in group[1:]:
            # Digests are expensive, and most groups are copies of their first job.
            if job != replace(first, sample=job.sample):
                self._digest.update(job_digest(job))
        if self._groups == self._submitted.groups and self.cursor != self._submitted:
            raise JobConflict(
                f"group {first.run}/{first.group}: source {self.name} was submitted before with other content up to"
                " here: submit it as before, or use another run"
            )
        return self._groups <= self._submitted.groups

    def check_end(self, run: str) -> None:
        """Called at the end of the source. Raises JobConflict when more groups were submitted before."""
        if self._groups < self._submitted.groups:
            raise JobConflict(
                f"run {run}: source {self.name} has {self._groups} groups, and {self._submitted.groups} were submitted"
                " before: submit it as before, or use another run"
            )


def replacement(job: Job, number: int) -> Job:
    """The job in that replacement of its group; with 0, the job itself. Raises ContractError."""
    if not number:
        return job
    return replace(job, group=f"{job.group}.r{number}", seed=job.seed + number * SEED_STRIDE)


def replacements(ledger: LedgerReader, groups: Iterable[Sequence[Job]], times: int) -> Iterator[list[Job]]:
    """Waits until all groups are settled, and yields a replacement for each dropped group, to be submitted at once.

    A dropped replacement is replaced too, up to `times` times per group. Raises ContractError for a group that was
    never submitted.
    """
    unsettled = [(jobs, 0) for jobs in groups]  # with the number of the latest replacement
    pause = 0.05
    while unsettled:
        still: list[tuple[Sequence[Job], int]] = []
        for start in range(0, len(unsettled), PAGE):
            page = unsettled[start : start + PAGE]
            names = [replacement(jobs[0], number).group for jobs, number in page]
            for (jobs, number), name, state in zip(page, names, ledger.group_states(names), strict=True):
                if state == "dropped" and number < times:
                    yield [replacement(job, number + 1) for job in jobs]
                    still.append((jobs, number + 1))
                elif state == "open":
                    still.append((jobs, number))
                elif not state:
                    raise ContractError(f"group {ledger.run}/{name} was never submitted, or its record is gone")
        unsettled = still
        if unsettled:
            time.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 1.5)
