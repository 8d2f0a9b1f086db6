"""Evaluations: tasks played several times each, and the result kept with the run.

The groups of an evaluation are handed only to consumers that ask for them, so a trainer's loop
never meets them. A finished group stays in Redis until the result is stored with the run. So a
repeated evaluation goes on at once, and reads what was acknowledged from the stored result.
"""

import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from rollq.client.arguments import check_timeout
from rollq.client.producing.producer import Producer, check_version
from rollq.client.tracking import Tracking
from rollq.client.waits import WaitLog, explain
from rollq.errors import (
    ContractError,
    LedgerError,
    NotHeld,
    PullTimeout,
    RollqError,
    SettingsError,
)
from rollq.evaluation.result import Result, TaskResult, task_result
from rollq.job import Job, Purpose, job_id, parse_id, part_of_name
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.evaluations import MOST_TRIES, EvaluationStore
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Published
from rollq.numbers import whole_number
from rollq.servers.retry import CLOSE_S, RetryLoop
from rollq.trajectory import Trajectory
from rollq.wire.codec import job_digest

log = logging.getLogger("rollq")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Longest time in seconds between two looks at the groups."""
LONGEST_NAME = 40
"""Number of characters of an evaluation's name that its groups' names have."""


def evaluation_jobs(run: str, name: str, tasks: Sequence[Job], k: int) -> list[Job]:
    """Sample 0 of each group of an evaluation inside a run: `eval.<name>.<env>.<split>.<task>`.

    Raises ContractError for no tasks, a task that is there twice, a `k` that is not a number of
    tries, and a name that is not a text.
    """
    whole_number("k, the number of tries,", k, at_least=1)
    if not isinstance(name, str) or not name:
        raise ContractError(f"run {run}: the name of an evaluation is a text, not {name!r}")
    if odd := [task for task in tasks if not isinstance(task, Job)]:
        raise ContractError(f"run {run}: the tasks of an evaluation are Jobs, not {odd[0]!r:.100}")
    jobs = [
        replace(
            job,
            run=run,
            group=f"eval.{_short(name)}.{job.task_name}",
            sample=0,
            size=k,
            spare=0,  # the first to finish are not a fair sample
            min_viable=0,
            purpose=Purpose.EVAL,
        )
        for job in tasks
    ]
    if not jobs:
        raise ContractError(f"run {run}: an evaluation needs at least one task")
    if len({job.group for job in jobs}) < len(jobs):
        raise ContractError(
            f"run {run}: an evaluation has each task once: ask for more tries with k"
        )
    return jobs


def _short(name: str) -> str:
    """The name as a part of group names. Different names stay different."""
    plain = part_of_name(name)
    if plain == name and len(name) <= LONGEST_NAME:
        return plain
    return f"{plain[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def source_name(jobs: Sequence[Job]) -> str:
    """A name for exactly these jobs as a source, so that a repeated evaluation submits nothing
    twice.
    """
    return "eval-" + hashlib.sha256(b"".join(map(job_digest, jobs))).hexdigest()[:20]


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
        if len(jobs) * jobs[0].size > MOST_TRIES:
            raise ContractError(
                f"run {reader.run}: an evaluation has at most {MOST_TRIES} tries, not "
                f"{len(jobs) * jobs[0].size}: split the tasks"
            )
        self.reader = reader
        self.jobs = jobs
        self._name = name
        self._version = version
        self._on_group = on_group
        self._store = EvaluationStore(reader.scripts)
        self._results: dict[str, TaskResult] = {}
        self._left_out: dict[str, None] = {}

    @property
    def graded(self) -> int:
        """Tries that are graded, of those whose groups are finished."""
        return sum(len(task.tries) for task in self._results.values())

    @property
    def rewards(self) -> list[float]:
        return [episode.reward for task in self._results.values() for episode in task.tries]

    def check(self) -> None:
        """Raises SettingsError when an evaluation of other tasks has the same name. Call it before
        the submission.
        """
        self._load()

    def collect(self) -> list[str]:
        """Reads the groups that have finished since the last look. Returns the groups that neither
        Redis nor the stored result knows: submit them again. The result knows those whose records
        have expired (`Client.forget_after`).

        Raises LedgerError for a group that is gone without having been evaluated.
        """
        over = {*self._results, *self._left_out}
        pending = [job for job in self.jobs if job.group not in over]
        unknown = []
        states = self.reader.group_states([job.group for job in pending])
        stored: dict[str, TaskResult] = {}
        if "acked" in states or "" in states:
            stored = {task.group: task for task in self._load()}
        for job, state in zip(pending, states, strict=True):
            if state in ("ready", "held"):
                self._read(job)
            elif job.group in stored:
                self._results[job.group] = stored[job.group]
            elif state == "acked":
                raise LedgerError(
                    f"group {job.run}/{job.group} was acknowledged before this evaluation had "
                    "read it, for example by `rollq pull --purpose eval`. Evaluate again under "
                    "another run or name"
                )
            elif state == "dropped":
                self._left_out[job.group] = None
            elif not state:
                unknown.append(job.group)
        return unknown

    @property
    def settled(self) -> bool:
        return len(self._results) + len(self._left_out) == len(self.jobs)

    def _read(self, job: Job) -> None:
        trajectories = []
        ids = [job_id(job.run, job.group, sample) for sample in range(job.size)]
        for member, trajectory in zip(ids, self.reader.read(ids), strict=True):
            if isinstance(trajectory, ContractError):
                if self.reader.group_states([job.group]) == ["acked"]:
                    return  # by another consumer, since the look; the next look says so
                return self._leave_out(job, member, trajectory)
            trajectories.append(trajectory)
        refused = self._on_group(trajectories)
        if refused:
            return self._leave_out(job, *refused)
        self._results[job.group] = task_result(trajectories)

    def _leave_out(self, job: Job, unreadable: str, why: ContractError) -> None:
        """The unreadable try becomes a dead letter, which can be played again. Only a holder may
        say so, and what else it holds goes back.
        """
        log.error("group %s/%s is left out of the evaluation: %s", job.run, job.group, why)
        self._left_out[job.group] = None
        deliveries = Deliveries(self.reader.redis, self.reader.run)
        token = f"{uuid.uuid4().hex[:16]}/0"
        ready = self.reader.standing(Purpose.EVAL).ready
        try:
            deliveries.take(max(1, ready), token, purpose=Purpose.EVAL)
            deliveries.reject(token, unreadable, str(why))
        except NotHeld:  # another consumer holds the group, and meets the same
            deliveries.give_back([token], Purpose.EVAL)

    def _load(self) -> Sequence[TaskResult]:
        stored = self._store.load(self._name)
        if stored is None:
            return ()
        ours = {job.group for job in self.jobs}
        theirs = {*(task.group for task in stored.tasks), *stored.left_out}
        if (stored.size, theirs) != (self.jobs[0].size, ours):
            stored_name, another = "the evaluation", "run"
            if self._name:
                stored_name, another = f"evaluation {self._name!r}", "name"
            raise SettingsError(
                f"{stored_name} of run {self.reader.run} has other tasks or tries: {len(theirs)} "
                f"tasks with {stored.size} tries each, and this one {len(ours)} with "
                f"{self.jobs[0].size}. Use another {another}"
            )
        return stored.tasks

    def result(self) -> Result:
        """The result so far."""
        dead = 0
        if self._left_out:
            groups = [parse_id(letter.job_id)[1] for letter in self.reader.dead(None)]
            dead = sum(group in self._left_out for group in groups)
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
        deliveries = Deliveries(self.reader.redis, self.reader.run)
        token = f"{uuid.uuid4().hex[:16]}/0"
        for group in self._results:
            with suppress(NotHeld):  # it was acknowledged before, or another consumer holds it
                deliveries.ack(token, [group])


def begin(
    reader: LedgerReader,
    producer: Producer,
    published: Callable[[], Published | None],
    tasks: Sequence[Job],
    k: int,
    version: str | None,
    name: str | None,
    tracking: Tracking | None,
) -> "Evaluation":
    """Submits an evaluation, as `Client.evaluate` describes it."""
    run = reader.run
    version = _version(run, published, tasks, version)
    name = version if name is None else name
    jobs = evaluation_jobs(run, name, tasks, k)
    if pinned := next((job for job in jobs if job.weight_version not in ("", version)), None):
        raise ContractError(
            f"run {run}: an evaluation of version {version!r} has no tasks that are pinned to"
            f" {pinned.weight_version!r}: evaluate each version by itself"
        )
    collector = Collector(reader, jobs, name=name, version=version)
    # No limit to the groups: the tasks are counted, and workers may not be there yet.
    source = source_name(jobs)
    return Evaluation(
        collector,
        lambda: producer.submit(jobs, 0, source),
        lambda: producer.forget(source),
        tracking,
    )


def _version(
    run: str, published: Callable[[], Published | None], tasks: Sequence[Job], version: str | None
) -> str:
    """The version to evaluate. Raises ContractError, SettingsError."""
    if version is None:
        version = next(
            (job.weight_version for job in tasks if isinstance(job, Job) and job.weight_version),
            None,
        )
    if version is None:
        if (policy := published()) is None:
            raise SettingsError(
                f"run {run}: no weight version was published: name it with evaluate(version=)"
            )
        version = policy.weight_version
    check_version(run, version)
    return version


class Evaluation:
    """An evaluation that runs in the background. Its thread ends with it, with the client or with
    the process.
    """

    def __init__(
        self,
        collector: Collector,
        submit: Callable[[], object],
        forget: Callable[[], object],
        tracking: Tracking | None,
    ) -> None:
        """`submit` enters all jobs; those that Redis has stay as they are. `forget` is called once
        they need not be entered again.
        """
        self._collector = collector
        self._submit = submit
        self._forget = forget
        self._tracking = tracking
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._over = threading.Event()
        self._retry = RetryLoop(wait=self._pause)
        self._thread = threading.Thread(target=self._run, name="rollq-evaluation", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """True if `result` returns at once."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> Result:
        """The result, once all tries are graded or dead. It is stored with the run by then.

        Raises PullTimeout after `timeout` seconds (None waits without end), ContractError for a
        timeout that is no number, and whatever ended the evaluation early; the same call to
        `Client.evaluate` goes on with it.
        """
        check_timeout(timeout)
        longest_s = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        if not self._over.wait(longest_s):
            collector = self._collector
            total = len(collector.jobs) * collector.jobs[0].size
            why = explain(collector.reader, Purpose.EVAL)
            raise PullTimeout(
                f"run {collector.reader.run}: {collector.graded} of {total} tries were graded "
                f"within {timeout:g} s. {why or 'Ask again later'}"
            )
        if self._error:
            raise self._error
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """Stops waiting for it. What was submitted is played all the same; the same call goes on
        with it.
        """
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._result = self._collect()
            if self._tracking:
                self._tracking.add_result(self._result)
        except BaseException as e:  # raised in `result`
            self._error = e
        self._over.set()

    def _collect(self) -> Result:
        collector = self._collector
        pause = FIRST_PAUSE_S
        wait = WaitLog(partial(explain, collector.reader, Purpose.EVAL))
        self._retry(collector.check)
        self._submit()
        while True:
            if self._retry(collector.collect):
                self._submit()
            if collector.settled:
                break
            wait.log_when_due()
            self._pause(pause)
            pause = min(LONGEST_PAUSE_S, pause * 1.5)
        result = self._retry(collector.save)
        self._retry(collector.ack)
        self._forget()
        if other := result.other_versions:
            tokens = ", ".join(f"{count} tokens of {name}" for name, count in other.items())
            log.warning(
                "run %s: the evaluation of version %s is mixed: it has %s",
                result.run,
                result.version,
                tokens,
            )
        return result

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise RollqError(
                f"run {self._collector.reader.run}: the evaluation was closed before its end"
            )
