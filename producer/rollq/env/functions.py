"""Functions of others that a job names: its reward, its context, its agent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollq.env.environment import RESPOND, Grade, Observation
from rollq.env.sandbox import Sandbox
from rollq.events import Message
from rollq.job import Json
from rollq.trajectory import Trajectory

RewardFunction = Callable[[Trajectory, Grade], "float | Grade"]
"""Grades an episode after its environment. The trajectory has every event but the closing one; an
episode that the environment did not end has a grade of 0.0. Raises RewardFailure; any other
exception counts as one.
"""

ContextHook = Callable[[Sequence[Message], Sequence[Message], int], "Sequence[Message] | None"]
"""Shortens a conversation that has grown long. It gets the messages of the episode's first prompt,
those of the present trace, which end with the replies to a turn, and the number of tokens that they
are. It returns the messages with which a new trace begins, which end with a message of the user or
a tool and show no other images; None: the trace goes on.
"""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Argument of an agent function."""

    base_url: str
    """Base address for an OpenAI client, up to and including `/v1`."""
    api_key: str
    model: str
    messages: Sequence[Message]
    """The system prompt, if there is one, and the user's first message."""
    tools: Sequence[Json]
    """The environment's tools in OpenAI's form; the agent may have its own instead."""
    sandbox: Sandbox | None
    """The environment's, where it has one: an agent may run in there (docs/sandboxes.md)."""
    take_step: Callable[[str, Mapping[str, Json] | str], Observation]

    def step(self, name: str, arguments: Mapping[str, Json] | str) -> Observation:
        """Calls one of the environment's tools. It is over when the observation is `done`.

        The arguments may be the text that the model wrote. Where it is no JSON object, the
        environment is not called, and the observation says to the policy what is wrong.
        """
        return self.take_step(name, arguments)

    def respond(self, text: str) -> Observation:
        """Writes to the user. Returns the answer."""
        return self.take_step(RESPOND, {"content": text})


AgentFunction = Callable[..., Any]
"""Plays one episode: takes an `Episode` and the job's agent_args by keyword; may be a coroutine
function. What it returns, if that is a string, is its answer. Its exceptions fail the attempt with
class agent.
"""
