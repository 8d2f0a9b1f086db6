"""Durable, token-exact rollouts of multi-turn tool-use agents, as a task queue.

A name is imported at its first use: code that uses only the values (the agent loop, a notebook)
does not load redis, and neither does a trainer before it makes a Client. `rollq.errors` has all
errors, `rollq.events` what a trajectory consists of, `rollq.env` what authors of environments and
agents need, `rollq.weights` the weight update of engines.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollq.batch import Batch, Group
    from rollq.client.client import Client
    from rollq.client.consuming.consumer import Consumer
    from rollq.client.step_metrics import StepMetrics
    from rollq.errors import (
        ContractError,
        MissingGroups,
        NotHeld,
        PullTimeout,
        RollqError,
        SettingsError,
    )
    from rollq.job import Budget, History, Job, Purpose
    from rollq.training.turn_credit import TurnCredit
    from rollq.trajectory import Segment, Traces, Trajectory

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Budget",
    "Client",
    "Consumer",
    "ContractError",
    "Group",
    "History",
    "Job",
    "MissingGroups",
    "NotHeld",
    "PullTimeout",
    "Purpose",
    "RollqError",
    "Segment",
    "SettingsError",
    "StepMetrics",
    "Traces",
    "Trajectory",
    "TurnCredit",
]


_MODULES = {
    name: module
    for module, names in {
        "batch": "Batch Group",
        "client.client": "Client",
        "client.consuming.consumer": "Consumer",
        "client.step_metrics": "StepMetrics",
        "job": "Budget History Job Purpose",
        "training.turn_credit": "TurnCredit",
        "trajectory": "Segment Traces Trajectory",
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
