"""An environment: one episode of one task, step by step, and the user that it talks to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollq.env.image import Image
from rollq.job import Json

RESPOND = "respond"
"""The action that writes to the user: `Action(RESPOND, {"content": text})`."""
STOP_MARKER = "###STOP###"
"""A user's message that contains it ends the conversation (tau-bench's convention)."""


class User(Protocol):
    """A user simulator for one episode. Raises UserFailure. A reply that contains STOP_MARKER ends
    the conversation.
    """

    def open(self) -> str:
        """The user's first message. Called once."""
        ...

    def reply(self, message: str) -> str:
        """The answer to the agent's message."""
        ...

    def recall(self, heard: str | None, reply: str) -> None:
        """Restores one exchange of an earlier attempt, instead of `open` or `reply`.

        The user heard `heard` (None if it opened the conversation) and answered `reply`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that the policy does: a tool call, or RESPOND."""

    name: str
    """The tool's name, as the policy wrote it: it may not exist."""
    arguments: Mapping[str, Json] = field(default_factory=dict)
    """Arguments as the policy wrote them: no schema was applied."""
    unclosed: bool = field(default=False, compare=False)
    """The turn ended where the call's end tag belongs. Such calls are carried out and counted."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of an action: what the tool returned, or the user's reply."""

    text: str
    """Text that the policy reads, up to 4 million characters."""
    done: bool = False
    """The episode is over; no further step is allowed."""
    reward: float | None = None
    """Reward of this step, for trainers that want rewards per turn. `Grade.reward` is the
    episode's, apart from these.
    """
    images: Sequence[Image] = ()
    """Images that the policy sees behind the text (docs/images.md)."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The outcome of a finished episode."""

    reward: float
    """The reward, in [0, 1]."""
    info: Mapping[str, Json] = field(default_factory=dict)
    """Anything worth recording, such as what was wrong. It must be JSON."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards of single agents, by their names in `Job.models`. An agent without one has
    `reward`.
    """


class Environment(Protocol):
    """One episode of one task, deterministic given the actions and the user's replies.

    It may ask its user in any step. Mistakes of the policy (an unknown tool, wrong arguments) are
    observations. Raises RolloutFailure; any other exception counts as EnvironmentFailure. A method
    `close`, if it has one, is called at the episode's end. It may have a `longest_step_s` and a
    `longest_grade_s`, in place of 60 seconds, and a `sandbox`, which agent programs are given.
    """

    @property
    def tools(self) -> Sequence[Json]:
        """Schemas in OpenAI's form: `{"type": "function", "function": {...}}`. They
        never change.
        """
        ...

    @property
    def system_prompt(self) -> str:
        """The rules that the policy is given. It never changes; "" sends none."""
        ...

    def reset(self, user: User) -> str | Observation:
        """Starts the episode with this user and returns the user's first message unchanged. Called
        once.

        An Observation has images that are shown with the message; nothing else of it counts.
        """
        ...

    def step(self, action: Action) -> Observation:
        """Carries out one action. Not called after an observation that is `done`."""
        ...

    def grade(self) -> Grade:
        """Grades the finished episode. Called at most once, after the step that was `done`."""
        ...


class Tools(Protocol):
    """The tools of one episode, where they are apart from its environment: `dataset(...,
    tools=)`.
    """

    schemas: Sequence[Json]
    """Schemas of the tools in OpenAI's form."""

    def call(self, action: Action) -> str:
        """The tool's answer. Raises EnvironmentFailure."""
        ...

    def close(self) -> None:
        """Called at the episode's end."""
        ...
