"""The groups of a producer: whole, in the same order after a restart, and replacements of dropped
ones.

Names follow from the jobs alone, so a restarted producer finds its groups again: `g.r1` is the
first replacement of group `g`, `g.r2` the next. This module submits nothing itself;
`rollq.client.producing.producer` does.
"""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rollq.errors import ContractError, Gap, JobConflict
from rollq.job import MAPPINGS, Job
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Cursor
from rollq.servers.retry import RetryLoop
from rollq.wire.blob import plain
from rollq.wire.codec import job_digest

PAGE = 1000
"""Number of groups whose states are read in one round trip."""
RECENT = 1024
"""Number of groups of a source that its producer keeps, to submit them again when Redis has lost
them. A power cut takes a second or two of groups with it.
"""
LONGEST_PAUSE_S = 2.0
"""Longest time in seconds between two looks at groups that are not settled."""


def whole_groups(jobs: Iterable[Job], run: str) -> Iterator[list[Job]]:
    """Whole groups of jobs, with run and group filled in. Each group is yielded before the next job
    is asked for.

    A lone sample 0 stands for its whole group, spare members included. Raises ContractError for a
    job of another run.
    """
    group: list[Job] = []
    for index, job in enumerate(jobs):
        job = _with_names(job, run, index)
        if group and job.group != group[0].group:
            yield _all_samples(group)
            group = []
        group.append(job)
        if len(group) == job.members:
            yield group
            group = []
    if group:
        yield _all_samples(group)


def _with_names(job: Job, run: str, index: int) -> Job:
    if not isinstance(job, Job):
        raise ContractError(f"jobs[{index}]: a Job is expected, not {job!r:.100}")
    try:
        if job.run and job.run != run:
            raise ContractError(
                f"{job.title}: belongs to run {job.run}, this client is of run {run}"
            )
        # Copies: a generator may use one mapping again for its next job.
        mappings = {name: getattr(job, name) for name in MAPPINGS}
        copies = {name: plain(value, name) for name, value in mappings.items() if value}
        return replace(job, run=run, group=job.group or job.task_name, **copies)
    except ContractError as e:
        raise ContractError(f"jobs[{index}]: {e}") from e


def _all_samples(group: list[Job]) -> list[Job]:
    first = group[0]
    if len(group) > 1 or first.sample:
        return group
    return [replace(first, sample=sample) for sample in range(first.members)]


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two groups of a source."""

    groups: int = 0
    jobs: int = 0
    digest: Any = None
    """Digest of all groups before it: an object of hashlib, which is never changed."""

    @property
    def cursor(self) -> Cursor:
        if not self.groups:
            return Cursor()
        return Cursor(self.groups, self.jobs, self.digest.hexdigest())

    def after(self, group: Sequence[Job]) -> "Position":
        """The place after this group, which is the next one."""
        first = group[0]
        digest = self.digest.copy() if self.digest else hashlib.sha256()
        digest.update(job_digest(first))
        for job in group[1:]:
            # Digests are expensive, and most groups are copies of their first job.
            if job != replace(first, sample=job.sample):
                digest.update(job_digest(job))
        return Position(self.groups + 1, self.jobs + len(group), digest)


class Source:
    """A sequence of groups that one producer submits in order, and how far it got.

    The ledger keeps how far the source was submitted, and a digest of the groups up to there. A
    source that has a name of its own is always the same sequence, so a restarted producer skips
    what was submitted before.
    """

    def __init__(self, name: str, submitted: Cursor = Cursor()) -> None:  # noqa: B008 (frozen)
        self.name = name
        self.lock = threading.Lock()
        """Held while a group is entered, so that threads which share the source enter their groups
        one by one.
        """
        self.position = Position()
        self._submitted = submitted
        self._recent: deque[tuple[Position, Sequence[Job]]] = deque(maxlen=RECENT)
        """The last groups, each with the place before it."""
        self.missing: deque[Sequence[Job]] = deque()
        """Groups that Redis has lost, in their order. They are entered before any other."""

    def move(self, group: Sequence[Job], after: Position) -> None:
        """The group was entered; the next one comes after it."""
        self._recent.append((self.position, group))
        self.position = after

    def skip(self, group: Sequence[Job]) -> bool:
        """True if the next group was submitted before, and is skipped.

        Raises JobConflict when the groups submitted before were others than those read so far.
        """
        if self.position.groups >= self._submitted.groups:
            return False
        self.move(group, self.position.after(group))
        is_end = self.position.groups == self._submitted.groups
        if is_end and self.position.cursor != self._submitted:
            raise JobConflict(
                f"group {group[0].run}/{group[0].group}: source {self.name} was submitted before "
                "with other content up to here: submit it as before, or use another run"
            )
        return True

    def go_back(self, gap: Gap) -> int:
        """Goes back to where the ledger's copy ends. What came after it is missing now; returns how
        many groups.

        Raises the gap itself when that is longer ago than what is kept.
        """
        for lost, (before, _) in enumerate(reversed(self._recent), 1):
            if before.cursor == gap.cursor:
                self.position = before
                for _ in range(lost):
                    self.missing.appendleft(self._recent.pop()[1])
                return lost
        raise gap

    def begin_again(self, submitted: Cursor) -> None:
        """The source is read again from its first group, and skipped up to where the ledger's copy
        ends.
        """
        self.position = Position()
        self._submitted = submitted
        self._recent.clear()
        self.missing.clear()

    def check_end(self, run: str) -> None:
        """Called at the end of the source. Raises JobConflict when more groups were submitted
        before.
        """
        if self.position.groups < self._submitted.groups:
            raise JobConflict(
                f"run {run}: source {self.name} has {self.position.groups} groups, and "
                f"{self._submitted.groups} were submitted before: submit it as before, or use "
                "another run"
            )


def replacements(
    ledger: LedgerReader,
    groups: Iterable[Sequence[Job]],
    times: int,
    on_wait: Callable[[], object] = lambda: None,
    *,
    retry: RetryLoop,
    forgets: bool = False,
) -> Iterator[list[Job]]:
    """Waits until all groups are settled, and yields a replacement for each dropped group, to be
    submitted at once.

    A dropped replacement is replaced too, up to `times` times per group. `on_wait` is called
    between two looks at the groups. `forgets`: the run forgets acknowledged groups, so an unknown
    one is taken for one of them. Otherwise raises ContractError for a group that was never
    submitted.
    """
    unsettled = [(jobs, 0) for jobs in groups]  # with the number of the latest replacement
    pause = 0.05
    while True:
        still_unsettled: list[tuple[Sequence[Job], int]] = []
        for start in range(0, len(unsettled), PAGE):
            page = unsettled[start : start + PAGE]
            names = [jobs[0].replacement(number).group for jobs, number in page]
            states = retry(partial(ledger.group_states, names))
            for (jobs, number), name, state in zip(page, names, states, strict=True):
                latest = _latest(f"{ledger.run}/{name}", state, number, times, forgets)
                if latest is None:
                    continue
                if latest > number or not state:
                    yield [job.replacement(latest) for job in jobs]
                still_unsettled.append((jobs, latest))
        if not still_unsettled:
            return
        unsettled = still_unsettled
        on_wait()
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, pause * 1.5)


def _latest(group: str, state: str, number: int, times: int, forgets: bool) -> int | None:
    """The number of the replacement to wait for, given the state of that with this `number`; None
    when the group is settled. Raises ContractError for a group that was never submitted.
    """
    if state == "dropped" and number < times:
        return number + 1
    if state == "open":
        return number
    if state or forgets:
        return None
    if number:  # it was yielded here, and Redis has lost it
        return number
    raise ContractError(
        f"group {group} was never submitted, or Redis has lost it: submit its jobs again, then "
        "refill"
    )
