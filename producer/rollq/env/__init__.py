"""Protocols for authors of environments, users, rewards and agents, and the values that they
exchange.

It needs the standard library only. docs/environments.md shows how to implement Environment and
Domain.
"""

from rollq.env.agent import AgentFunction, Episode
from rollq.env.attempt import attempt_labels
from rollq.env.context import ContextHook
from rollq.env.domain import Domain, Task
from rollq.env.environment import RESPOND, Action, Environment, Grade, Observation, Tools
from rollq.env.image import Image
from rollq.env.reward import RewardFunction
from rollq.env.sandbox import CommandResult, Sandbox
from rollq.env.user import STOP_MARKER, User
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
    "Task",
    "Tools",
    "User",
    "attempt_labels",
    "mask_url",
]
