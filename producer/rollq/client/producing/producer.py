"""Enters groups into the ledger in their order, sends their messages, and waits while too many are
unacknowledged.

When Redis has lost the last groups of a source, because it came back without its last writes, the
producer goes back and enters them again: from what it keeps of the source, or by reading the source
again from its beginning.
"""

import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf

from rollq.client.producing.broker import Broker
from rollq.client.producing.submission import PAGE, Source, replacements, whole_groups
from rollq.client.waits import WaitLog, explain
from rollq.errors import ContractError, FailureClass, Gap, JobFailure
from rollq.job import LONGEST_VERSION, Job, Purpose
from rollq.ledger.constants import EVAL, NEW, SENDING_S
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Cursor, JobMessage, Submission
from rollq.ledger.versions import LAST_STEP, Versions
from rollq.numbers import whole_number
from rollq.servers.retry import RetryLoop, try_briefly
from rollq.worker_package import for_clients

log = logging.getLogger("rollq")

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a pair, which Redis cannot be sent."""


def check_version(run: str, weight_version: object) -> None:
    """Raises ContractError unless it can name a weight version."""
    is_name = isinstance(weight_version, str) and 0 < len(weight_version) <= LONGEST_VERSION
    if not is_name or SURROGATE.search(str(weight_version)):
        raise ContractError(
            f"run {run}: a weight version is a text of 1 to {LONGEST_VERSION} characters, "
            f"not {weight_version!r:.300}"
        )


class PolicyPublication:
    """One publication. Each call says it; the ledger counts it once. Threads may call it."""

    def __init__(self, versions: Versions, step: int, weight_version: str) -> None:
        """Raises ContractError for a wrong step or version."""
        whole_number(f"run {versions.run}: the step of a policy", step, 0, LAST_STEP - 1)
        check_version(versions.run, weight_version)
        self.step = step
        self.number = 0
        """`number`: how many publications the run had with this one. 0 before it is recorded."""
        self._versions = versions
        self._version = weight_version
        self._token = uuid.uuid4().hex
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Raises what `Versions.publish` raises."""
        with self._lock:
            self.number = self._versions.publish(self.step, self._version, self._token, self.number)


class JobChecks:
    """Checks of jobs before they are submitted, where the worker's package is installed: a light
    client leaves them to the workers. Each kind of job is checked once, and the number of its task
    each time.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, ...], float] = {}
        """Tasks that there are for each kind of job; infinity where that is not known."""

    def check(self, job: Job) -> None:
        """Raises ContractError for what no worker can play. Warns of what this machine does not
        know, because the workers may know it.
        """
        options = (job.agent_args, job.user, job.reward_args, job.context)
        kind = (job.env, job.split, job.agent, job.reward, *map(repr, options))
        if job.task < self._tasks.get(kind, 0):
            return
        self._tasks[kind] = self._look(job)

    def _look(self, job: Job) -> float:
        """The number of tasks like this one."""
        try:
            worker = for_clients()
            unknown = worker.check_job(job, [job.task])
            if not unknown:
                return int(worker.task_count(job.env, job.split))
        except ImportError:
            return inf
        except JobFailure as e:
            raise ContractError(f"{job.title}: {e}") from e
        log.warning("run %s: %s; the workers may know it", job.run, unknown)
        return inf  # one warning is enough


class Producer:
    """The producer's side of one run. Threads may share it."""

    def __init__(
        self,
        ledger: Ledger,
        broker: Broker,
        budgets: Mapping[FailureClass, int],
        pause: Callable[[float], object],
    ) -> None:
        """`pause` waits that many seconds, and raises ClientClosed once the client is closed."""
        self._pause = pause
        self._retry = RetryLoop(wait=pause)
        self._ledger = ledger
        self._reader = LedgerReader(ledger.redis, ledger.run)
        self._room = Deliveries(ledger.redis, ledger.run)
        self._broker = broker
        self._budgets = budgets
        self._checks = JobChecks()
        self._process = os.getpid()
        self._own = _nameless()
        """The groups that are submitted without the name of a source."""
        self._sources: dict[str, Source] = {}
        """All sources that were submitted here, by name."""
        self._settings: dict[str, Callable[[], None]] = {}
        """Settings that were pinned for the run here, to be pinned again when Redis has lost its
        last writes.
        """
        self._publication: PolicyPublication | None = None
        """The last one."""

    def pin(self, what: str, call: Callable[[], None]) -> None:
        """Pins something for the run, now and whenever the producer goes back."""
        self._retry(call)
        self._settings[what] = call

    def publish(self, publication: PolicyPublication) -> None:
        """Publishes a policy now, and again when Redis has lost it."""
        self.pin("publication", publication)
        self._publication = publication

    def republish(self, published: int) -> int | None:
        """Publishes again when Redis knows fewer publications than this client. Returns the step
        then.
        """
        last = self._publication
        if last is None or published >= last.number:
            return None
        log.warning(
            "run %s: Redis has lost the publication of step %d: it is published again",
            self._ledger.run,
            last.step,
        )
        self.pin_again()
        return last.step

    def pin_again(self) -> None:
        """Redis has lost its last writes: pins everything again that was pinned here."""
        for pin in list(self._settings.values()):
            self._retry(pin)

    def submit(self, jobs: Iterable[Job], ahead: int, source: str | None) -> Submission:
        """Submits jobs, as `Client.submit` describes it."""
        if isinstance(jobs, Job):
            raise ContractError(
                "submit takes a list of jobs, or another sequence of them, not one: submit([job])"
            )
        self._look_for_fork()
        if self._budgets:
            self._settings["budgets"] = lambda: self._ledger.pin_budgets(self._budgets)
        self.pin_again()
        if source is None:
            return _total(self._submissions(jobs, ahead, self._own))
        named = Source(source, self._retry(lambda: self._ledger.cursor(source)))
        self._sources[source] = named
        return _total(self._submissions(jobs, ahead, named))

    def forget(self, source: str) -> None:
        """Keeps nothing of a source whose groups need not be submitted again."""
        self._sources.pop(source, None)

    def refill(self, jobs: Iterable[Job], times: int, ahead: int) -> Submission:
        """Replaces dropped groups, as `Client.refill` describes it."""
        self._look_for_fork()
        groups = list(whole_groups(jobs, self._ledger.run))
        wait = WaitLog(lambda: explain(self._reader, groups[0][0].purpose))

        def on_wait() -> None:
            self._pause(0.0)
            wait.log_when_due()

        forgets = self._retry(self._reader.forgets)
        dropped = replacements(
            self._reader, groups, times, on_wait, forgets=forgets, retry=self._retry
        )
        return _total(
            submission for group in dropped for submission in self._replace(group, ahead, forgets)
        )

    def _replace(self, group: Sequence[Job], ahead: int, forgets: bool) -> Iterator[Submission]:
        """Enters a replacement. When its record may have expired, a source of its own tells whether
        it was entered.
        """
        name = f"refill:{group[0].group}"  # no caller's source has a colon
        source = self._own
        if forgets:
            source = Source(name, self._retry(lambda: self._ledger.cursor(name)))
        if source.skip(group):
            yield self._known([group])
        else:
            yield from self._enter(group, ahead, source)

    def seal(self) -> None:
        """Seals the run once the ledger has everything that was submitted here. Raises Gap when it
        lost more than can be submitted again.
        """
        self._look_for_fork()
        while True:
            for source in list(self._sources.values()):
                _total(self._enter(None, 0, source))
            sources = dict(self._sources)  # another thread may submit an evaluation
            cursors = {name: source.position.cursor for name, source in sources.items()}
            try:
                return self._retry(partial(self._ledger.seal, cursors))
            except Gap as gap:
                source = sources[gap.source]
                with source.lock:
                    self._go_back(source, gap)

    def close(self) -> None:
        """Forgets in Redis how far the groups without a source got: a field of a hundred bytes,
        which stays if Redis does not answer. Raises nothing.
        """
        self._look_for_fork()
        if self._own.name in self._sources:
            try_briefly(partial(self._ledger.forget_source, self._own.name))

    def _look_for_fork(self) -> None:
        """A forked process goes on as a producer of its own, because its parent submits too."""
        if os.getpid() != self._process:
            self._process = os.getpid()
            self._own = _nameless()
            self._sources = {}

    def _submissions(self, jobs: Iterable[Job], ahead: int, source: Source) -> Iterator[Submission]:
        if source is self._own:
            yield from self._enter_nameless(jobs, ahead, source)
            return
        groups = whole_groups(jobs, self._ledger.run)
        skipped: list[Sequence[Job]] = []
        while True:
            group = next(groups, None)
            if group is None:
                break
            if source.skip(group):
                skipped.append(group)
                if len(skipped) == PAGE:
                    yield self._known(skipped)
                    skipped = []
                continue
            try:
                yield from self._enter(group, ahead, source)
            except Gap as gap:
                if iter(jobs) is jobs:  # an iterator cannot be read again
                    raise
                log.warning("%s: the source is read again", gap)
                source.begin_again(gap.cursor)
                groups = whole_groups(jobs, self._ledger.run)
                skipped = []
        yield self._known(skipped)
        source.check_end(self._ledger.run)

    def _enter_nameless(
        self, jobs: Iterable[Job], ahead: int, source: Source
    ) -> Iterator[Submission]:
        for group in whole_groups(jobs, self._ledger.run):
            try:
                yield from self._enter(group, ahead, source)
            except Gap:  # the caller knows now what is missing, and begins another source
                if source is self._own:  # no other thread has met the gap before
                    self._own = _nameless()
                self._sources.pop(source.name, None)
                raise

    def _known(self, groups: Sequence[Sequence[Job]]) -> Submission:
        """The submission of groups that were submitted before. An acknowledged group's record may
        have expired.
        """
        submitted: list[str] = []
        acked: list[str] = []
        names = [group[0].group for group in groups]
        states = self._retry(lambda: self._reader.group_states(names)) if groups else []
        for group, state in zip(groups, states, strict=True):
            ids = acked if state in ("acked", "") else submitted
            ids.extend(job.id for job in group)
        return Submission(known=submitted, acked=acked)

    def _enter(
        self, group: Sequence[Job] | None, ahead: int, source: Source
    ) -> Iterator[Submission]:
        """Enters the groups of the source that Redis has lost, then this one, each as soon as there
        is room.

        Raises Gap when Redis lost more than the source keeps.
        """
        if group:
            self._checks.check(group[0])
        self._sources.setdefault(source.name, source)
        wait = None
        while True:
            with source.lock:
                self._pause(0.0)  # raises once the client is closed, also after a wait for the lock
                missing = len(source.missing) > 0
                todo = source.missing[0] if missing else group
                if todo is None:
                    return
                after = source.position.after(todo)
                try:
                    submission = self._submit(todo, source.name, after.cursor, ahead)
                except Gap as gap:
                    self._go_back(source, gap)
                    continue
                if not submission.full:
                    source.move(todo, after)
                    if missing:  # kept until then, because the call may have failed
                        source.missing.popleft()
            if submission.full:
                wait = wait or WaitLog(partial(explain, self._reader, todo[0].purpose, ahead=ahead))
                wait.log_when_due()
                # a second, because another producer may have got the wake-up
                self._room.wait("producers", 1.0)
                continue
            if submission.new:
                self._send(todo)
            yield submission
            if not missing:
                return

    def _go_back(self, source: Source, gap: Gap) -> None:
        self.pin_again()
        lost = source.go_back(gap)
        log.warning(
            "run %s: Redis has lost %d submitted groups; they are submitted again",
            self._ledger.run,
            lost,
        )

    def _submit(self, group: Sequence[Job], source: str, cursor: Cursor, ahead: int) -> Submission:
        send_in_s = SENDING_S if self._broker.available else 0.0
        submit = partial(
            self._ledger.submit,
            group,
            send_in_s=send_in_s,
            source=source,
            cursor=cursor,
            ahead=ahead,
        )
        token = uuid.uuid4().hex
        return self._retry(lambda: submit(token=token))

    def _send(self, group: Sequence[Job]) -> None:
        priority = EVAL if group[0].purpose is Purpose.EVAL else NEW
        sent = self._broker.send([JobMessage(job.id, job.queue, priority) for job in group])
        self._retry(lambda: self._ledger.confirm(sent))


def _nameless() -> Source:
    return Source(f"client-{uuid.uuid4().hex}")


def _total(submissions: Iterable[Submission]) -> Submission:
    """Each id once: a group that was submitted again because Redis had lost it stays a new one."""
    new: dict[str, None] = {}
    submitted: dict[str, None] = {}
    acked: dict[str, None] = {}
    for submission in submissions:
        new |= dict.fromkeys(submission.new)
        submitted |= dict.fromkeys(submission.known)
        acked |= dict.fromkeys(submission.acked)
    return Submission(
        new=list(new),
        known=[job_id for job_id in submitted if job_id not in new],
        acked=[job_id for job_id in acked if job_id not in new],
    )
