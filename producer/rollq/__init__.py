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
    "Batch": "rollq.batch",
    "Budget": "rollq.job",
    "Client": "rollq.client.client",
    "Consumer": "rollq.client.consuming.consumer",
    "ContractError": "rollq.errors",
    "Group": "rollq.batch",
    "History": "rollq.job",
    "Job": "rollq.job",
    "MissingGroups": "rollq.errors",
    "NotHeld": "rollq.errors",
    "PullTimeout": "rollq.errors",
    "Purpose": "rollq.job",
    "RollqError": "rollq.errors",
    "Segment": "rollq.trajectory",
    "SettingsError": "rollq.errors",
    "StepMetrics": "rollq.client.step_metrics",
    "Traces": "rollq.trajectory",
    "Trajectory": "rollq.trajectory",
    "TurnCredit": "rollq.training.turn_credit",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
