"""Episodes for the coroutines of one process: each is submitted once, and waited for by its job id.

Some trainers, such as verl, ask for every session by itself, in several processes. So a job is a
group of one here, and nothing is taken from the queue: results are read by job id, and acknowledged
when no checkpoint needs them any more. One thread does all of it, with one round trip to Redis for
all that wait.
"""

import asyncio
import logging
import queue
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from rollq.client.producing.producer import Producer
from rollq.errors import (
    ClientClosed,
    ContractError,
    FailureClass,
    LedgerError,
    NotHeld,
    RolloutFailure,
)
from rollq.job import Job
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.numbers import whole_number
from rollq.servers.retry import RetryLoop, try_briefly
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS

log = logging.getLogger("rollq")

LOOK_S = 0.25
"""Seconds between two looks at what is waited for."""
NO_LIMIT = 10_000_000
"""Episodes that may be unacknowledged: the trainer itself bounds how many it asks for."""
AT_ONCE = 64
"""Trajectories that are read, and groups that are acknowledged, in one round trip."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    job: Job
    step: int
    future: "Future[Trajectory]"


class Episodes:
    """The episodes of one run that this process waits for. One process, or several of one trainer,
    may use a run.
    """

    def __init__(self, ledger: Ledger, producer: Producer, keep_steps: int) -> None:
        """`keep_steps`: see `Client.episodes`. Raises ContractError."""
        self._reader = LedgerReader(ledger.redis, ledger.run)
        self._producer = producer
        self._run_name = ledger.run
        self._deliveries = Deliveries(ledger.redis, ledger.run)
        self._keep_steps = whole_number("keep_steps", keep_steps, at_least=0)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._retry = RetryLoop(wait=self._pause)
        self._new: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._waiting: dict[str, list[_Wanted]] = {}
        """Waiting callers by group."""
        self._fetched: dict[str, int] = {}
        """The step of each episode that was handed on and is not acknowledged, by group."""
        self._step = -1
        """The latest step that asked."""
        self._token = f"{uuid.uuid4().hex[:16]}/0"
        self._thread = threading.Thread(target=self._run, name="rollq-episodes", daemon=True)
        self._thread.start()

    async def play(self, job: Job, step: int) -> Trajectory:
        """The finished episode of a job that is a group of its own. `step`: the training step that
        asks for it.

        The same job again, in this process or another one, is the same episode. Raises
        RolloutFailure when it ended without a grade, LedgerError when it is acknowledged,
        JobConflict when its id was submitted with other content, ContractError when its group has
        several members, and ClientClosed.
        """
        whole_number("step", step, at_least=0)
        if job.members != 1:
            raise ContractError(
                f"{job.title}: each episode is asked for by itself, and its group would have "
                f"{job.members}: submit it with size 1 and without spare"
            )
        future: Future[Trajectory] = Future()
        job = replace(job, run=self._run_name, group=job.group or job.task_name)
        with self._lock:  # nothing is put behind the end
            if self._closing.is_set():
                raise self._closed
            self._new.put(_Wanted(job, step, future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Stops waiting: who still waits gets ClientClosed. What is being played goes on, and can
        be asked for again.
        """
        with self._lock:
            self._closing.set()
            self._new.put(None)
        try_briefly(self._thread.join)  # Redis may be away

    @property
    def _closed(self) -> ClientClosed:
        return ClientClosed(
            f"run {self._run_name}: its client was closed; the episode can be asked for again"
        )

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise self._closed

    def _run(self) -> None:
        is_open = True
        while is_open:
            try:
                is_open = self._submit_new()
                if is_open:
                    self._look()
            except ClientClosed:
                is_open = False
            except Exception as e:  # the same job can be asked for again
                log.exception("run %s: waiting for episodes failed", self._run_name)
                self._fail_all(e)
        self._fail_all(self._closed)
        while not self._new.empty():
            wanted = self._new.get()
            if wanted is not None and wanted.future.set_running_or_notify_cancel():
                wanted.future.set_exception(self._closed)

    def _submit_new(self) -> bool:
        """Waits a moment for new jobs, and submits all that there are. Returns False at the end."""
        wait_s = LOOK_S if self._waiting else None
        while True:
            try:
                wanted = self._new.get(timeout=wait_s)
            except queue.Empty:
                return True
            if wanted is None:
                return False
            if wanted.future.set_running_or_notify_cancel():
                error = self._submit(wanted.job)
                if error:  # another may wait for the job as it was submitted before
                    wanted.future.set_exception(error)
                else:
                    self._waiting.setdefault(wanted.job.group, []).append(wanted)
                self._advance(wanted.step)
            wait_s = 0.0

    def _submit(self, job: Job) -> Exception | None:
        """Returns why it cannot be waited for."""
        try:
            submitted = self._producer.submit([job], NO_LIMIT, None)
        except Exception as e:  # of this job alone
            return e
        if not submitted.acked:
            return None
        why = f"an episode of more than {self._keep_steps} steps later was asked for since"
        return LedgerError(
            f"job {job.id} was acknowledged, because {why}: use another run, or a larger keep_steps"
        )

    def _advance(self, step: int) -> None:
        """Acknowledges what this process fetched for steps that no checkpoint needs any more."""
        if step <= self._step:
            return
        self._step = step
        oldest = step - self._keep_steps
        old = [group for group, of_step in self._fetched.items() if of_step < oldest]
        for groups in _parts(old):
            self._ack(groups)
            for group in groups:
                del self._fetched[group]

    def _ack(self, groups: Sequence[str]) -> None:
        try:
            self._retry(partial(self._deliveries.ack, self._token, groups))
            return
        except NotHeld:  # another process acknowledged some of them, or they were lost
            pass
        for group in groups:
            try:
                self._retry(partial(self._deliveries.ack, self._token, [group]))
            except NotHeld as e:
                log.info("it is not acknowledged here: %s", e)

    def _look(self) -> None:
        """Hands on what has ended."""
        groups = list(self._waiting)
        states = self._retry(lambda: self._reader.group_states(groups))
        state_of = dict(zip(groups, states, strict=True))
        for part in _parts([group for group in groups if state_of[group] in ("ready", "held")]):
            self._hand_on(part)
        for group, state in state_of.items():
            if state not in ("dropped", "", "acked"):
                continue
            job = self._waiting[group][0].job
            if state == "dropped":
                self._fail(group, self._failure(job.id))
                continue
            # Redis came back without its last writes, or another process went on.
            error = self._submit(job)
            if error:
                self._fail(group, error)

    def _hand_on(self, groups: Sequence[str]) -> None:
        jobs = [self._waiting[group][0].job for group in groups]
        extras = [ROUTED_EXPERTS] if any(job.routed_experts for job in jobs) else []
        trajectories = self._retry(lambda: self._reader.read([job.id for job in jobs], extras))
        for group, trajectory in zip(groups, trajectories, strict=True):
            if isinstance(trajectory, ContractError):
                self._fail(group, trajectory)
                continue
            for wanted in self._waiting.pop(group):
                self._fetched[group] = wanted.step
                wanted.future.set_result(trajectory)

    def _fail_all(self, error: Exception) -> None:
        for group in list(self._waiting):
            self._fail(group, error)

    def _fail(self, group: str, error: Exception) -> None:
        for wanted in self._waiting.pop(group, []):
            wanted.future.set_exception(error)

    def _failure(self, job_id: str) -> RolloutFailure:
        state = self._retry(lambda: self._reader.job(job_id))
        assert state is not None  # its group is there
        error = RolloutFailure(
            f"job {job_id} ended without a grade, of class {state.failure}: {state.reason}"
        )
        error.failure = state.failure or FailureClass.JOB
        return error


def _parts(groups: Sequence[str]) -> list[Sequence[str]]:
    return [groups[first : first + AT_ONCE] for first in range(0, len(groups), AT_ONCE)]
