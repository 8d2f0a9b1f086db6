"""The light client: submit jobs, take batches of finished groups, acknowledge them.

All it shares with the workers is Redis. It holds nothing that a restart would miss.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any

from rollq.batch import Batch
from rollq.client.celery_publisher import Publisher
from rollq.client.consumer import Consumer
from rollq.client.refill import dropped
from rollq.client.submission_cursor import Source
from rollq.errors import ContractError, FailureClass, LedgerError, SettingsError
from rollq.job import NAME, Job, Purpose
from rollq.ledger.connection import connect
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import HOLD_S, PUBLISHING_S, Ledger
from rollq.ledger.replies import Cursor, DeadLetter, JobState, Submission
from rollq.ledger.retry import retry
from rollq.settings import Settings
from rollq.trajectory import Trajectory

AHEAD = 256
"""Groups that may be unacknowledged before `submit` waits: unread results must not fill Redis."""


class Client:
    """One run, seen from the trainer's or the producer's side. Close it, or use it as a context manager.

    Redis being away is waited for; redis.ConnectionError is raised after about a minute. A Redis that answers but takes
    no writes (out of memory, disk full) is waited for without end, with a warning on the logger `rollq`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        run: str,
        broker_url: str | None = None,
        budgets: Mapping[FailureClass, int] | None = None,
        hold_s: float = HOLD_S,
    ) -> None:
        """The addresses default to ROLLQ_REDIS_URL and ROLLQ_BROKER_URL. Connects when first used.

        `budgets`, by class: a job's failures of the class that make it dead; fixed by the run's first submission, which
        raises SettingsError when they are others. `hold_s`: a consumer out of touch for so many seconds has lost its
        batches. Raises SettingsError.
        """
        if not NAME.fullmatch(run):
            raise SettingsError(f"run {run!r} must match {NAME.pattern}")
        settings = Settings.from_env(redis_url=url)
        self.run = run
        if not 0 < hold_s < float("inf"):
            raise SettingsError(f"hold_s must be a positive number of seconds, not {hold_s!r}")
        self.ledger = Ledger(connect(settings.redis_url), run)
        self.letters = DeadLetters(self.ledger.redis, run)
        """Dead jobs: requeue, discard; cancel."""
        self._budgets = dict(budgets or {})
        self._hold_s = hold_s
        self.duplicates = 0
        """Jobs received in a batch although an earlier batch held them."""
        self._received: set[str] = set()
        self._publisher = Publisher(broker_url or settings.broker_url)

    @property
    def delivered(self) -> int:
        """Distinct jobs received in batches."""
        return len(self._received)

    @property
    def broker_error(self) -> str | None:
        """Why the broker does not take messages, by exception type: the workers' reapers publish in its place."""
        return self._publisher.error

    def submit(self, jobs: Iterable[Job], *, ahead: int = AHEAD, source: str | None = None) -> Submission:
        """Submit jobs group by group; the jobs of one group follow one another.

        A lone sample 0 stands for its whole group; `run` and `group` are filled in. Waits while `ahead` groups are
        unacknowledged, and asks for the next job only when there is room. Submitting again what is known changes
        nothing. `source` names a sequence of jobs that is always the same: started again, it goes on behind the groups
        that were entered, without sending them. Raises JobConflict, ContractError, or LedgerError when the run is
        sealed: the groups before stay submitted.
        """
        if type(ahead) is not int or ahead < 1:
            raise ContractError(f"ahead must be a whole number of groups of at least 1, not {ahead!r}")
        if source is not None and not NAME.fullmatch(source):
            raise ContractError(f"source {source!r} must match {NAME.pattern}")
        if self._budgets:
            retry(lambda: self.ledger.fix_budgets(self._budgets))
        at = Source(source, retry(lambda: self.ledger.cursor(source))) if source else None
        new: list[str] = []
        known: list[str] = []
        room: dict[Purpose, int] = {}
        for samples in self._groups(jobs):
            if at and at.has_entered(samples):
                known += [job.id for job in samples]
                continue
            left, purpose = room.get(samples[0].purpose, 0), samples[0].purpose
            room[purpose] = left - 1 if left > 1 else self._room(samples[0], ahead)
            submission = self._submit(samples, at)
            new += submission.new
            known += submission.known
        if at:
            at.end(self.run)
        return Submission(new, known)

    def refill(self, jobs: Iterable[Job], *, times: int = 1, ahead: int = AHEAD) -> Submission:
        """Wait until the groups of these jobs are settled, and submit a fresh one in place of each dropped one.

        The replacement of group `g` is `g.r1`, with another seed; if that is dropped too, `g.r2`, and so on up to
        `times`. May be repeated. Raises as `submit` does.
        """
        new: list[str] = []
        known: list[str] = []
        for samples in dropped(self.ledger, list(self._groups(jobs)), times):
            self._room(samples[0], ahead)
            submission = self._submit(samples)
            new += submission.new
            known += submission.known
        return Submission(new, known)

    def seal(self) -> None:
        """No more groups will come: consumers get the short last batch, and then their loops end."""
        retry(self.ledger.seal)

    def batches(
        self, groups: int, *, purpose: Purpose = Purpose.TRAIN, timeout: float | None = None
    ) -> Iterator[Batch]:
        """Batches of that many groups, oldest first, until a sealed run has no more; its last one may be short.

        A batch is kept for this consumer until `batch.ack()`; leave the loop without, and its groups are handed out
        again a minute later. Groups of one purpose only: an eval group never reaches a trainer that does not ask for
        it. A producer must be as far ahead as a batch is long (`submit(ahead=)`), or the two wait for each other.
        Raises PullTimeout when a batch is not there within `timeout` seconds (None: waits).
        """
        if type(groups) is not int or groups < 1:
            raise ContractError(f"groups must be a whole number of at least 1, not {groups!r}")
        return self._batches(self.consumer(purpose), groups, timeout)

    def consumer(self, purpose: Purpose = Purpose.TRAIN) -> Consumer:
        """For a loop of one's own, that asks for another number each time or looks around in between. Close it."""
        if purpose not in set(Purpose):
            raise ContractError(f"purpose must be {' or '.join(Purpose)}, not {purpose!r}")
        return Consumer(self.ledger, Purpose(purpose), self._hold_s)

    def trajectory(self, job_id: str, attempt: int | None = None) -> Trajectory:
        """What there is of a job's episode, finished or not; a dead one ends in what killed it.

        With `attempt`, the journal that was set aside under that number. Raises LedgerError when the job is unknown or
        was acknowledged.
        """
        return self.ledger.trajectory(job_id, attempt)

    def job(self, job_id: str) -> JobState:
        """Where a job is. Raises LedgerError when it is unknown."""
        state = self.ledger.job(job_id)
        if state is None:
            raise LedgerError(f"job {job_id} is unknown: run {self.run} has no such job")
        return state

    def dead(self, limit: int | None = 1000) -> list[DeadLetter]:
        """The jobs that ended without a grade, the latest first."""
        return self.ledger.dead(limit)

    def requeue(self, job_ids: Iterable[str]) -> None:
        """Give dead jobs a fresh start; their groups come back if they were dropped.

        Raises LedgerError for the first one that is not dead, or whose group is handed out without it.
        """
        for job_id in job_ids:
            retry(partial(self.letters.requeue, job_id))

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Jobs that are queued or being played end as dead, of class cancelled.

        Raises LedgerError for the first one that has ended otherwise.
        """
        for job_id in job_ids:
            retry(partial(self.letters.cancel, job_id))

    def stats(self) -> dict[str, Any]:
        """How many jobs and groups are where, and totals since the run began (docs/ledger.md)."""
        return self.ledger.stats()

    def close(self) -> None:
        self._publisher.close()
        self.ledger.redis.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _groups(self, jobs: Iterable[Job]) -> Iterator[list[Job]]:
        """Whole groups, named; each as soon as it is whole, before the next job is asked for."""
        samples: list[Job] = []
        for job in map(self._named, jobs, count()):
            if samples and job.group != samples[0].group:
                yield _whole(samples)
                samples = []
            samples.append(job)
            if len(samples) == job.size:
                yield samples
                samples = []
        if samples:
            yield _whole(samples)

    def _named(self, job: Job, index: int) -> Job:
        """With the run's and a group's name."""
        try:
            if job.run and job.run != self.run:
                raise ContractError(f"{job.title}: belongs to run {job.run}, this client is of run {self.run}")
            group = job.group or re.sub(r"[^A-Za-z0-9._-]", "-", f"{job.env}.{job.split}.{job.task}")
            return replace(job, run=self.run, group=group)
        except ContractError as e:
            raise ContractError(f"jobs[{index}]: {e}") from e

    def _room(self, job: Job, ahead: int) -> int:
        """Waits until another group may be submitted; returns how many may."""
        pause = 0.02
        while (room := ahead - retry(lambda: self.ledger.standing(job.purpose)).unacknowledged) < 1:
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)
        return room

    def _submit(self, jobs: Sequence[Job], at: Source | None = None) -> Submission:
        name, cursor = (at.name, at.cursor) if at else ("", Cursor())
        publish_in_s = PUBLISHING_S if self._publisher.available else 0.0
        submission = retry(lambda: self.ledger.submit(jobs, publish_in_s=publish_in_s, source=name, cursor=cursor))
        if submission.new:
            published = self._publisher.publish(submission.new)
            retry(lambda: self.ledger.confirm(published))
        return submission

    def _batches(self, consumer: Consumer, groups: int, timeout: float | None) -> Iterator[Batch]:
        with consumer:
            while batch := consumer.next(groups, timeout):
                ids = [trajectory.job.id for trajectory in batch.trajectories]
                self.duplicates += len(self._received.intersection(ids))
                self._received.update(ids)
                yield batch


def _whole(samples: list[Job]) -> list[Job]:
    """A lone sample 0 stands for its whole group."""
    first = samples[0]
    if len(samples) > 1 or first.sample:
        return samples
    return [replace(first, sample=sample) for sample in range(first.size)]
