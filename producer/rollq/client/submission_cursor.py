"""A source: a sequence of groups that is the same whenever it is read, and how far its producer has got in it.

A restarted producer skips what was entered before, and sends none of it again; a digest tells whether it is the same.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from rollq.errors import JobConflict
from rollq.job import Job
from rollq.ledger.replies import Cursor
from rollq.wire.codec import job_digest


class Source:
    """One reading of the source, from its first group on."""

    def __init__(self, name: str, known: Cursor) -> None:
        self.name = name
        self._known = known
        self._groups = self._jobs = 0
        self._digest = hashlib.sha256()

    @property
    def cursor(self) -> Cursor:
        """After the groups that were read so far."""
        return Cursor(self._groups, self._jobs, self._digest.hexdigest())

    def has_entered(self, group: Sequence[Job]) -> bool:
        """Reads the next group: whether it was entered before. Raises JobConflict when the source is another one."""
        self._groups += 1
        self._jobs += len(group)
        first = group[0]
        self._digest.update(job_digest(first).encode())
        for job in group[1:]:
            # Digests are dear, and most groups are copies of their first job.
            if job != replace(first, sample=job.sample):
                self._digest.update(job_digest(job).encode())
        if self._groups == self._known.groups and self.cursor != self._known:
            self._conflict(first)
        return self._groups <= self._known.groups

    def end(self, run: str) -> None:
        """There are no more groups. Raises JobConflict when there were more before."""
        if self._groups < self._known.groups:
            raise JobConflict(
                f"run {run}: source {self.name} has {self._groups} groups, and {self._known.groups} were submitted"
                " before: submit it as before, or use another run"
            )

    def _conflict(self, job: Job) -> None:
        raise JobConflict(
            f"group {job.run}/{job.group}: source {self.name} was submitted before with other content up to here:"
            " submit it as before, or use another run"
        )
