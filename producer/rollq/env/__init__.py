"""Protocols for authors of environments, users, rewards and agents, and the values that they
exchange.

It needs the standard library only. docs/environments.md shows how to implement Environment and
Domain.
"""

from rollq.env.attempt import attempt_labels
from rollq.env.domain import Domain, Task
from rollq.env.environment import (
    RESPOND,
    STOP_MARKER,
    Action,
    Environment,
    Grade,
    Observation,
    Tools,
    User,
)
from rollq.env.functions import AgentFunction, ContextHook, Episode, RewardFunction
from rollq.env.image import Image
from rollq.env.sandbox import CommandResult, Sandbox, SandboxMaker, SandboxSpec
from rollq.job import Json
from rollq.urls import mask_url

__all__ = [
    "RESPOND",
    "STOP_MARKER",
    "Action",
    "AgentFunction",
    "CommandResult",
    "ContextHook",
    "Domain",
    "Environment",
    "Episode",
    "Grade",
    "Image",
    "Json",
    "Observation",
    "RewardFunction",
    "Sandbox",
    "SandboxMaker",
    "SandboxSpec",
    "Task",
    "Tools",
    "User",
    "attempt_labels",
    "mask_url",
]
