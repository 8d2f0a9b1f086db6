"""Durable, token-exact rollouts of multi-turn tool-use agents, as a task queue.

A name is imported at its first use: code that uses only the values (the agent loop, a notebook) does not load redis,
and neither does a trainer before it makes a Client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollq.batch import Batch, Group
    from rollq.client.client import Client
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
        RewardFailure,
        RolloutFailure,
        RollqError,
        SettingsError,
        Unconfirmed,
        UnknownSchema,
        Unwritable,
        UserFailure,
        WorkerFailure,
    )
    from rollq.events import Closed, Finish, Observed, Prompt, Sampled, Stop, VersionSpan
    from rollq.job import Budget, History, Job, Purpose
    from rollq.trajectory import Header, Trajectory
    from rollq.trajectory_extras import Extra

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
    "RewardFailure",
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


_MODULES = {
    name: module
    for module, names in {
        "batch": "Batch Group",
        "client.client": "Client",
        "job": "Budget History Job Purpose",
        "events": "Closed Finish Observed Prompt Sampled Stop VersionSpan",
        "trajectory": "Header Trajectory",
        "trajectory_extras": "Extra",
    }.items()
    for name in names.split()
}
"""The module of each name. All others are errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"rollq.{_MODULES.get(name, 'errors')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
