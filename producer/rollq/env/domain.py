"""A domain: the tasks that one environment name stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollq.env.environment import Action, Environment
from rollq.job import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a domain: what simulated users and perfect agents need to know."""

    id: str
    """Unique in the domain."""
    hash: str
    """Changes whenever the task's content does."""
    instruction: str
    """Text for a simulated user: who they are and what they want."""
    opening: str
    """The scripted user's first message; unique in the domain."""
    replies: Sequence[str]
    """The scripted user's further messages. The last one contains STOP_MARKER and is repeated when
    more are needed.
    """
    moves: Sequence[Action]
    """The actions of a perfect policy against the scripted user. They earn the full reward."""
    user_tools: str = ""
    """Prompt text that describes the user's tools. The user calls one by a message
    `<tool_call>JSON</tool_call>`.
    """
    outputs: Sequence[str] = ()
    """Texts that the agent must tell the user."""
    assertions: Sequence[str] = ()
    """Statements about the conversation that a model must judge. They belong to the reward: a job
    without a reward function is refused (the reward `assertions` judges them).
    """


class Domain(Protocol):
    """A domain: what one environment name (`tau2:retail`) stands for. One object per process,
    shared by all threads. It may have a `longest_open_s`, in place of 300 seconds for `open`.
    """

    @property
    def name(self) -> str:
        """The name by which jobs ask for it."""
        ...

    @property
    def version(self) -> str:
        """Package and version of code and data, recorded in every trajectory. It changes when
        rewards do.
        """
        ...

    def splits(self) -> Mapping[str, int]:
        """Number of tasks by split."""
        ...

    def task(self, split: str, index: int) -> Task:
        """Raises JobFailure for an unknown split and an index out of range."""
        ...

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        """A new environment for one episode. `args` are the job's env_args.

        Raises JobFailure as `task` does, and for unknown args.
        """
        ...
