"""Durable, token-exact rollouts of multi-turn tool-use agents, as a task queue."""

from typing import TYPE_CHECKING, Any

from rollq.batch import Batch, Group
from rollq.errors import (
    ContractError,
    EngineFailure,
    EnvironmentFailure,
    FailureClass,
    Fenced,
    FunctionError,
    Gap,
    JobConflict,
    JobFailure,
    JournalConflict,
    LedgerError,
    MissingGroups,
    NotHeld,
    PullTimeout,
    RolloutFailure,
    RollqError,
    SettingsError,
    Unconfirmed,
    UnknownSchema,
    Unwritable,
    UserFailure,
    WorkerFailure,
)
from rollq.job import Budget, History, Job, Purpose
from rollq.trajectory import (
    Closed,
    Finish,
    Header,
    Observed,
    Prompt,
    Sampled,
    Stop,
    Trajectory,
    VersionSpan,
)
from rollq.trajectory_extras import Extra

if TYPE_CHECKING:
    from rollq.client.client import Client

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Budget",
    "Client",
    "Closed",
    "ContractError",
    "EngineFailure",
    "EnvironmentFailure",
    "Extra",
    "FailureClass",
    "Fenced",
    "Finish",
    "FunctionError",
    "Gap",
    "Group",
    "Header",
    "History",
    "Job",
    "JobConflict",
    "JobFailure",
    "JournalConflict",
    "LedgerError",
    "MissingGroups",
    "NotHeld",
    "Observed",
    "Prompt",
    "PullTimeout",
    "Purpose",
    "RolloutFailure",
    "RollqError",
    "Sampled",
    "SettingsError",
    "Stop",
    "Trajectory",
    "Unconfirmed",
    "UnknownSchema",
    "Unwritable",
    "UserFailure",
    "VersionSpan",
    "WorkerFailure",
]


def __getattr__(name: str) -> Any:
    # Code that uses only the values (the agent loop, a notebook) does not load redis.
    if name == "Client":
        from rollq.client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
