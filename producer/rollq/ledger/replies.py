"""Return types of the ledger. Pure values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rollq.errors import FailureClass
from rollq.job import Job, Purpose


class State(StrEnum):
    """The state of a job. It leaves `leased` only through its own attempt or when the lease
    expires.
    """

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    SURPLUS = "surplus"
    """Not needed any more: `size` other members of its group are graded (`Job.spare`). Nothing of
    it is kept.
    """


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of a submission."""

    new: Sequence[str] = ()
    """Ids that were not there before."""
    known: Sequence[str] = ()
    """Ids that were submitted before with the same content: nothing changed. Those in `acked` are
    not among them.
    """
    acked: Sequence[str] = ()
    """Ids that were submitted before and whose group is acknowledged."""
    full: bool = False
    """Nothing was entered, because as many groups as `ahead` or admission allows are there. Try
    again later.
    """


@dataclass(frozen=True, slots=True)
class JobMessage:
    """A message for the broker: it tells a worker that this job may be claimed."""

    job_id: str
    queue: str
    """The job's queue (`Job.queue`)."""
    priority: int
    """Lower ones are delivered first (`rollq.ledger.constants`)."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a source's producer. It moves in the script that enters the group."""

    groups: int = 0
    jobs: int = 0
    mark: str = ""
    """Hexadecimal digest of all groups of the source so far."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The job is leased to this worker, under this attempt."""

    job: Job
    attempt: int
    """Counts claims from 1."""
    lease: str
    """`attempt#token`; every write of the attempt carries it. After Redis has lost its last writes,
    two workers may hold the same attempt, but never the same lease.
    """
    set_aside: bool
    """True if an earlier attempt's journal was set aside, so that this attempt starts with an empty
    one.
    """
    journal: int = 0
    """Number of entries of the journal to go on with (header and events). 0 if there is nothing to
    resume.
    """
    oldest_step: int | None = None
    """Weights of an earlier step are too old for its tokens. None if the run has no bound, or
    nothing was published.
    """


@dataclass(frozen=True, slots=True)
class Refusal:
    """The job cannot be claimed; its message is spent."""

    reason: str
    """`unknown`, `leased`, `done`, `dead`, `surplus`, `early` (in its backoff), `unreadable`
    (failed as class job), or why this worker cannot play it: `tokenizer` (the run has another
    tokenizer or chat template), `schema` (its blob has another version). The last two leave the job
    to other workers.
    """
    not_before: float | None = None
    """Unix time on Redis's clock from which an `early` job may be claimed. The job is sent again by
    then.
    """
    detail: str = ""
    """Fault and remedy for `unreadable`, `tokenizer` and `schema`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a job after a failed attempt."""

    status: State
    """`queued` or `dead`."""
    not_before: float
    """Unix time on Redis's clock before which the job is not claimed. 0.0 if it may be claimed at
    once.
    """


@dataclass(frozen=True, slots=True)
class Published:
    """The policy that the engines serve, as the trainer said last."""

    step: int
    """The training step that made it, counted from 0."""
    weight_version: str
    """The engines' name of it."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The bound on how far groups for training may run ahead of the trainer (docs/ledger.md)."""

    groups_per_batch: int
    max_staleness: int
    max_running: int | None
    """Most groups that are being played at a time."""
    step: int
    """The published step; 0 before the first publication."""
    trained: int
    """Groups whose places in the training steps so far are used, without those that are held:
    acknowledged, skipped by the trainer, or left out of a published step.
    """
    capacity: int
    """Number of groups that may enter now; 0 or less: none."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Counts of a run's groups of one purpose, and of its jobs of both purposes."""

    open: int
    ready: int
    held: int
    sealed: bool
    queued: int = 0
    """Jobs, of either purpose."""
    leased: int = 0
    """Jobs, of either purpose."""
    exists: bool = True
    """True if the run exists: a producer has submitted to it or pinned something for it."""
    full: int | None = None
    """The number of groups at which a producer waits right now (its `ahead`). 0 if it waits for
    admission. None: no producer waits.
    """
    wanted: int = 0
    """The fewest groups that a waiting consumer wants. 0 if none waits."""
    published: Published | None = None
    admission: Admission | None = None

    @property
    def unacknowledged(self) -> int:
        """Number of groups that are not acknowledged yet."""
        return self.open + self.ready + self.held


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A group that is held by a consumer."""

    id: str
    seq: int
    size: int
    members: Sequence[str]
    """Job ids of the graded members, by sample."""
    dead: Sequence[str]
    handed: int = 0
    """Number of times that it was handed out before."""
    started: int | None = None
    """Step of `Group.started_step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that ended without a grade."""

    job_id: str
    failure: FailureClass
    reason: str
    attempts: int
    worker: str
    """The last worker that played it."""
    turns: int
    """Number of turns in its journal, which is where it ended."""
    age_s: float
    """Seconds since it died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """All that the ledger knows of a job, for people."""

    id: str
    job: Job | None
    """None once the job was acknowledged and dropped."""
    state: State
    attempt: int
    worker: str = ""
    purpose: Purpose = Purpose.TRAIN
    group_state: str = "open"
    """open, ready, held, acked or dropped."""
    failures: Mapping[FailureClass, int] = field(default_factory=dict)
    failure: FailureClass | None = None
    """Class and reason of the last failure."""
    reason: str = ""
    submitted: float = 0.0
    """Unix time on Redis's clock at which its group was."""
    not_before: float = 0.0
    lease_until: float | None = None
    """Unix time on Redis's clock, while leased."""
    set_aside: Sequence[int] = ()
    """Attempts whose journals were set aside."""
    journal: Sequence[bytes] = ()
    """Header and events of the current journal, encoded."""
