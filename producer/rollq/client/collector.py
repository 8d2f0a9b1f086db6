"""Reads the groups of one evaluation as they finish, stores the result with the run, and
acknowledges them then.

It holds no groups: a finished group stays in Redis until its result is stored. So a repeated
evaluation goes on at once, and reads what was acknowledged from the stored result.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from rollq.errors import ContractError, LedgerError, NotHeld, SettingsError
from rollq.evaluation.result import Result, TaskResult, task_result
from rollq.job import Job, Purpose, parse_id
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.evaluations import LARGEST, Store
from rollq.ledger.reader import LedgerReader
from rollq.trajectory import Trajectory

log = logging.getLogger("rollq")


class Collector:
    """Reads the groups of one evaluation as they finish. It blocks for no longer than a
    look takes.
    """

    def __init__(
        self,
        reader: LedgerReader,
        jobs: Sequence[Job],
        *,
        name: str = "",
        version: str | None = None,
        on_group: Callable[
            [Sequence[Trajectory]], tuple[str, ContractError] | None
        ] = lambda trajectories: None,
    ) -> None:
        """`jobs`: sample 0 of each group, all of one size. `on_group` gets the trajectories of each
        group that is read. It returns a job that it cannot keep, and why, which leaves the group
        out. Raises ContractError when there are too many tries to keep.
        """
        if len(jobs) * jobs[0].size > LARGEST:
            raise ContractError(
                f"run {reader.run}: an evaluation has at most {LARGEST} tries, not "
                f"{len(jobs) * jobs[0].size}: split"
                " the tasks"
            )
        self.reader, self.jobs = reader, jobs
        self._name, self._version, self._on_group = name, version, on_group
        self._store = Store(reader.scripts)
        self._results: dict[str, TaskResult] = {}
        self._left_out: dict[str, None] = {}

    @property
    def graded(self) -> int:
        """Tries that are graded, of those whose groups are finished."""
        return sum(len(task.tries) for task in self._results.values())

    @property
    def rewards(self) -> list[float]:
        return [one.reward for task in self._results.values() for one in task.tries]

    def check(self) -> None:
        """For before the submission. Raises SettingsError when an evaluation of other tasks has the
        same name.
        """
        self._load()

    def look(self) -> list[str]:
        """Reads the groups that have finished since the last look. Returns the groups that neither
        Redis nor the stored result knows: submit them again. The result knows those whose records
        have expired (`Client.forget_after`).

        Raises LedgerError for a group that is gone without having been evaluated.
        """
        pending = [
            job
            for job in self.jobs
            if job.group not in self._results and job.group not in self._left_out
        ]
        unknown = []
        states = self.reader.group_states([job.group for job in pending])
        stored = {task.group: task for task in self._load()} if {"acked", ""} & {*states} else {}
        for job, state in zip(pending, states, strict=True):
            match state:
                case "ready" | "held":
                    self._read(job)
                case "acked" | "" if job.group in stored:
                    self._results[job.group] = stored[job.group]
                case "acked":
                    raise LedgerError(
                        f"group {job.run}/{job.group} was acknowledged before this "
                        "evaluation had read it, for example"
                        " by `rollq pull --purpose eval`. Evaluate again under another run or name"
                    )
                case "dropped":
                    self._left_out[job.group] = None
                case "":
                    unknown.append(job.group)
        return unknown

    @property
    def settled(self) -> bool:
        return len(self._results) + len(self._left_out) == len(self.jobs)

    def _read(self, job: Job) -> None:
        trajectories, ids = [], [f"{job.run}/{job.group}/{sample}" for sample in range(job.size)]
        for job_id, read in zip(ids, self.reader.read(ids), strict=True):
            if isinstance(read, ContractError):
                if self.reader.group_states([job.group]) == ["acked"]:
                    return  # by another consumer, since the look; the next look says so
                return self._leave_out(job, job_id, read)
            trajectories.append(read)
        if refused := self._on_group(trajectories):
            return self._leave_out(job, *refused)
        self._results[job.group] = task_result(trajectories)

    def _leave_out(self, job: Job, unreadable: str, why: ContractError) -> None:
        """The unreadable try becomes a dead letter, which can be played again. Only a holder may
        say so, and what else it holds goes back.
        """
        log.error("group %s/%s is left out of the evaluation: %s", job.run, job.group, why)
        self._left_out[job.group] = None
        deliveries, token = (
            Deliveries(self.reader.redis, self.reader.run),
            f"{uuid.uuid4().hex[:16]}/0",
        )
        ready = self.reader.standing(Purpose.EVAL).ready
        with suppress(NotHeld):  # another consumer holds the group, and meets the same
            deliveries.take(max(1, ready), token, purpose=Purpose.EVAL)
            deliveries.reject(token, unreadable, str(why))

    def _load(self) -> Sequence[TaskResult]:
        stored = self._store.load(self._name)
        if stored is None:
            return ()
        ours = {job.group for job in self.jobs}
        theirs = {*(task.group for task in stored.tasks), *stored.left_out}
        if (stored.size, theirs) != (self.jobs[0].size, ours):
            there, another = (
                (f"evaluation {self._name!r}", "name") if self._name else ("the evaluation", "run")
            )
            raise SettingsError(
                f"{there} of run {self.reader.run} has other tasks or tries: "
                f"{len(theirs)} tasks with {stored.size}"
                f" tries each, and this one {len(ours)} with {self.jobs[0].size}. Use "
                f"another {another}"
            )
        return stored.tasks

    def result(self) -> Result:
        """What was found so far."""
        dead = 0
        if self._left_out:
            dead = sum(
                parse_id(letter.job_id)[1] in self._left_out for letter in self.reader.dead(None)
            )
        return Result(
            run=self.reader.run,
            name=self._name,
            version=self._version,
            size=self.jobs[0].size,
            tasks=[self._results[job.group] for job in self.jobs if job.group in self._results],
            left_out=list(self._left_out),
            dead=dead,
        )

    def save(self) -> Result:
        """Stores the result. Raises what `check` raises."""
        self.check()
        result = self.result()
        self._store.save(result)
        return result

    def ack(self) -> None:
        """Acknowledges the groups that are in the stored result, so that Redis forgets their
        trajectories.
        """
        deliveries, token = (
            Deliveries(self.reader.redis, self.reader.run),
            f"{uuid.uuid4().hex[:16]}/0",
        )
        for group in self._results:
            with suppress(NotHeld):  # it was acknowledged before, or another consumer holds it
                deliveries.ack(token, [group])
