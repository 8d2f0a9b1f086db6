"""Everything rollq raises, in one tree.

    RollqError
    ├── SettingsError          a flag, an environment variable or a file is wrong
    ├── ContractError          a job, an event, a blob or a reply breaks the data contract
    │   └── UnknownSchema      a blob was written in another version of the schema
    ├── JobConflict            a job id was submitted before with other content
    ├── LedgerError            the ledger refused a write
    │   ├── Unwritable         Redis takes no writes now: out of memory, disk full, read-only, busy
    │   ├── Fenced             the writer no longer holds the job's lease
    │   ├── JournalConflict    the journal already holds another event at that index
    │   ├── Gap                a source's group does not follow the last one that the ledger has
    │   └── NotHeld            ack or extension of a batch that this consumer does not hold
    ├── ClientClosed           a client or consumer was closed before this call
    ├── SyncError              an engine of a fleet does not serve the new weights
    ├── PullTimeout            not enough groups became ready in time
    ├── FunctionError          a function of the trainer raised or returned what it may not
    ├── MissingGroups          an exact batch cannot be made up without new submissions
    ├── ForOtherWorkers        only a worker set up otherwise can play the job; no cost
    │   └── ServiceAway        a service that its environment needs does not answer; no cost
    └── RolloutFailure         an attempt failed; carries a FailureClass
        ├── EngineFailure      class engine   (infrastructure: retried, resumed)
        │   └── EngineBreach   also a ContractError: a reply breaks token fidelity
        ├── UserFailure        class user     (infrastructure: retried, resumed)
        ├── WorkerFailure      class worker   (infrastructure: retried, resumed)
        ├── RewardFailure      class reward   (infrastructure: retried, resumed; never reward 0)
        ├── TeacherFailure     class teacher  (infrastructure: retried, resumed)
        ├── AgentFailure       class agent    (data: retried from the start)
        ├── EnvironmentFailure class env      (data: retried once, in a fresh environment)
        └── JobFailure         class job      (data: the job itself cannot be played)
            └── JobBreach      also a ContractError: the job breaks token fidelity

A bad rollout is data, not a crash: a worker turns every RolloutFailure into a failure record of its
attempt. All errors survive pickling, because they cross threads and processes.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class FailureClass(StrEnum):
    """Party at fault in an unfinished attempt. The policy is graded for its own deeds only."""

    ENGINE = "engine"
    """The inference engine: refused, timed out, replied garbage."""
    USER = "user"
    """The user simulator: its endpoint failed or answered nothing."""
    WORKER = "worker"
    """The worker: died, lost its lease, ran out of memory."""
    REWARD = "reward"
    """The job's reward function: its judge did not answer, it raised, it returned no number."""
    TEACHER = "teacher"
    """One of the job's teachers: its engine did not answer, or cannot score the episode."""
    AGENT = "agent"
    """The job's agent program: crashed, hung, did not do after a resume what it had done before."""
    ENV = "env"
    """The environment: raised, hung, broke its protocol."""
    JOB = "job"
    """The job: unknown environment, task out of range, an edge the chat template does not support.
    """
    CANCELLED = "cancelled"
    """A person cancelled the job."""


class RollqError(Exception):
    """Root of everything rollq raises."""


class SettingsError(RollqError, ValueError):
    """A flag, an environment variable or a settings file is wrong."""


class ContractError(RollqError, ValueError):
    """A value breaks the data contract."""


class UnknownSchema(ContractError):
    """A blob was written in a version of the schema that this rollq does not read. The blob itself
    is sound, so no job is condemned for it.
    """


class JobConflict(RollqError, ValueError):
    """This job id was submitted before with other content."""


class LedgerError(RollqError, RuntimeError):
    """The ledger refused a write."""


class Unwritable(LedgerError):
    """Redis takes no writes for now (out of memory, a full disk, read-only, busy). Nothing was
    changed: try later.
    """


class Fenced(LedgerError):
    """The writer no longer holds the job's lease, so its write was refused."""


class JournalConflict(LedgerError):
    """The journal holds another event at this index."""

    length: int = 0
    """Number of entries in the journal. After Redis lost its tail, send again from there."""


class Gap(LedgerError):
    """A source's group does not follow the last one that the ledger has, because Redis lost its
    tail. Nothing was entered: submit again from `cursor`.
    """

    cursor: Any = None
    """The `rollq.ledger.replies.Cursor` at which the ledger's copy of the source ends."""
    source: str = ""


class NotHeld(LedgerError):
    """This batch is not held under this token, or no longer."""


class ClientClosed(RollqError, RuntimeError):
    """The client or the consumer was closed before this call."""


class SyncError(RollqError, RuntimeError):
    """Some engines do not serve the new weights. They stay paused; the others continue. The same
    update again repairs them.
    """

    failed: Mapping[str, str] = MappingProxyType({})
    """The step and the reason, by the engine's URL."""
    updated: Sequence[Any] = ()
    """A `rollq.weights.EngineUpdate` for each engine that serves them."""


class PullTimeout(RollqError, TimeoutError):
    """Not enough groups became ready in time."""


class FunctionError(RollqError, RuntimeError):
    """A filter or a reward function of the trainer raised, or returned what it may not. The batch
    stays held, so the next call gets the same groups.
    """


class MissingGroups(RollqError, RuntimeError):
    """Too few groups are ready for an exact batch, and none is being played. No group was taken:
    submit more, for example with `Client.refill`, and ask again.
    """

    missing: int = 0
    """Number of groups that are not there."""
    ready: int = 0
    """Number of groups that are."""
    dropped: int = 0
    """Number of groups of the run that were dropped so far."""


class ForOtherWorkers(RollqError):
    """Only a worker that was set up otherwise can play the job, so this one gives it back at no
    cost.
    """


class ServiceAway(ForOtherWorkers):
    """A service that the environment needs, such as a container engine, does not answer this
    worker. The job goes back at no cost, and comes again in seconds.
    """


class RolloutFailure(RollqError, RuntimeError):
    """An attempt could not be finished for a reason that is not the policy's."""

    failure: FailureClass = FailureClass.WORKER


class EngineFailure(RolloutFailure):
    """The inference engine failed."""

    failure = FailureClass.ENGINE


class UserFailure(RolloutFailure):
    """The user simulator failed."""

    failure = FailureClass.USER


class WorkerFailure(RolloutFailure):
    """The worker failed."""

    failure = FailureClass.WORKER


class RewardFailure(RolloutFailure):
    """The job's reward function failed. The episode is in the journal, so the next attempt only
    asks it again.
    """

    failure = FailureClass.REWARD


class TeacherFailure(RolloutFailure):
    """A teacher of the job did not score the episode. It is in the journal, so the next attempt
    only grades it and asks the teachers again.
    """

    failure = FailureClass.TEACHER


class AgentFailure(RolloutFailure):
    """The agent program crashed, hung, or did not repeat what it did before. The episode starts
    again.
    """

    failure = FailureClass.AGENT


class EnvironmentFailure(RolloutFailure):
    """The environment failed."""

    failure = FailureClass.ENV


class JobFailure(RolloutFailure):
    """The job itself cannot be played."""

    failure = FailureClass.JOB


class EngineBreach(EngineFailure, ContractError):
    """The engine's reply breaks an invariant of token fidelity. It is never recorded or
    trained on.
    """


class JobBreach(JobFailure, ContractError):
    """Something that rollq made for this job (a prompt, a bridge, the order of events) breaks an
    invariant of token fidelity.
    """
