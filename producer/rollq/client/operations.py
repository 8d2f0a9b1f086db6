"""What a client does with jobs that exist: look at them, play dead ones again, end others."""

from __future__ import annotations  # as in client.py

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rollq.client.arguments import check_ids
from rollq.errors import ContractError, LedgerError
from rollq.job import Purpose

if TYPE_CHECKING:
    from rollq.client.internals import Internals
    from rollq.ledger.replies import DeadLetter, JobState
    from rollq.servers.retry import RetryLoop
    from rollq.trajectory import Trajectory


class Operations:
    """The part of `Client` that neither submits nor takes batches."""

    run: str
    _internals: Internals
    _retry: RetryLoop

    def trajectory(self, job_id: str, attempt: int | None = None) -> Trajectory:
        """A job's episode as far as it was played. The episode of a dead job ends with its failure.

        With `attempt`: the journal that was set aside under that attempt. Raises LedgerError when
        the job is unknown or was acknowledged.
        """
        return self._retry(lambda: self._internals.reader.trajectory(job_id, attempt))

    def job(self, job_id: str) -> JobState:
        """A job's state. Raises LedgerError when it is unknown."""
        state = self._retry(lambda: self._internals.reader.job(job_id))
        if state is None:
            raise LedgerError(f"job {job_id} is unknown: run {self.run} has no such job")
        return state

    def group_states(self, groups: Sequence[str]) -> list[str]:
        """The state of each group: open, ready, held, acked or dropped; empty for one that is
        unknown.
        """
        return self._retry(lambda: self._internals.reader.group_states(groups))

    def explain(self, wanted: int) -> str:
        """Who waits for whom while a consumer waits for so many groups, and what to do; empty while
        they are only being played.
        """
        from rollq.client.waits import explain

        return explain(self._internals.reader, Purpose.TRAIN, wanted=wanted)

    def set_engines(self, name: str, urls: Iterable[str]) -> None:
        """Make these the engines of workers that were started with `--engine redis:NAME`, in every
        run.
        """
        from rollq.ledger.workers.engine_addresses import set_addresses

        self._retry(lambda: set_addresses(self._internals.ledger.redis, name, {*urls}))

    def dead(self, limit: int | None = 1000) -> list[DeadLetter]:
        """The jobs that ended without a grade, the latest first."""
        return self._retry(lambda: self._internals.reader.dead(limit))

    def requeue(self, job_ids: Iterable[str]) -> None:
        """Queue dead jobs again, without their failures. Groups that were dropped for them come
        back.

        Raises LedgerError for the first job that is not dead, or whose group is handed out without
        it.
        """
        for job_id in check_ids(job_ids):
            self._retry(partial(self._internals.dead_letters.requeue, job_id))

    def cancel(
        self, job_ids: Iterable[str] | None = None, *, group: str | None = None, run: bool = False
    ) -> None:
        """End queued and running jobs as dead, of class cancelled: these jobs, the unfinished
        members of a group, or those of the whole run, which takes no more groups then.

        Workers stop playing them within seconds. A group is then ready if it has `min_viable`
        graded members, else dropped. Raises LedgerError for the first of `job_ids` that has already
        ended, and for an unknown group; ContractError when nothing is named.
        """
        if job_ids is None and group is None and not run:
            raise ContractError(
                f"run {self.run}: cancel what? Give ids of jobs, group=, or run=True for all of it"
            )
        for job_id in check_ids(job_ids or ()):
            self._retry(partial(self._internals.dead_letters.cancel, job_id))
        if group is not None:
            self._retry(lambda: self._internals.dead_letters.cancel_group(group))
        if run:
            self._retry(self._internals.ledger.seal)
            for name in self._retry(self._internals.dead_letters.open_groups):
                self._retry(partial(self._internals.dead_letters.cancel_group, name))

    def stats(self) -> dict[str, Any]:
        """How many jobs and groups are in each state, and totals since the run began
        (docs/ledger.md). All are 0 for a run that is not `known`.
        """
        return self._retry(self._internals.reader.stats)
