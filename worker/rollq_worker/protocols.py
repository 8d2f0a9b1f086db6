"""The seams of the agent loop: what `episode.play` needs of engine, renderer, environment, user and journal.

Protocols of one to three methods and the values that cross them. `rollq_worker.fakes` implements each in a few lines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollq.job import Json
from rollq.trajectory import Event, Finish, Message, VersionSpan

RESPOND = "respond"
"""The action that says something to the user: `Action(RESPOND, {"content": text})`."""
STOP_MARKER = "###STOP###"
"""A user simulator ends the conversation with it (tau-bench's convention)."""


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy does in a turn: a tool call, or RESPOND."""

    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What an action led to: the tool's result or the user's reply."""

    text: str
    done: bool = False
    """The episode is over; no further step is allowed."""


@dataclass(frozen=True, slots=True)
class Grade:
    reward: float
    info: Mapping[str, Json] = field(default_factory=dict)


class User(Protocol):
    """A user simulator for one episode. Raises UserFailure; a reply with STOP_MARKER in it ends the conversation."""

    def open(self) -> str:
        """The user's first message. Called once."""
        ...

    def reply(self, message: str) -> str:
        """Answer what the agent said."""
        ...

    def recall(self, heard: str | None, said: str) -> None:
        """Take over what was said in an earlier attempt as if it had been said just now (`heard` None: the opening)."""
        ...


class Environment(Protocol):
    """One episode of one task; deterministic given the actions and the user's replies.

    It may ask its user in any step. Raises RolloutFailure; anything else that escapes counts as EnvironmentFailure.
    Errors that the policy made (unknown tool, wrong arguments) are observations.
    """

    @property
    def tools(self) -> Sequence[Json]:
        """Schemas in OpenAI's form: `{"type": "function", "function": {...}}`; the same ones all the time."""
        ...

    @property
    def system_prompt(self) -> str: ...

    def reset(self, user: User) -> str:
        """Start the episode with this user and return the user's first message as it came. Called once."""
        ...

    def step(self, action: Action) -> Observation:
        """Carry out one action. Never called after `done`."""
        ...

    def grade(self) -> Grade:
        """The reward in [0, 1] of a finished episode. Called at most once, after the last step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a domain knows of one task beside its environment."""

    id: str
    hash: str
    """Changes whenever the task's content does."""
    instruction: str
    """What a simulated user is told: who they are and what they want."""
    opening: str
    """The scripted user's first message; unique in the domain."""
    replies: Sequence[str]
    """The scripted user's further messages, the last one with STOP_MARKER and repeated if need be."""
    moves: Sequence[Action]
    """The ground truth as a perfect policy plays it against the scripted user: reward 1.0 in the end."""
    outputs: Sequence[str] = ()
    """Texts the agent must have told the user."""


class Domain(Protocol):
    """Everything one environment name (`tau2:retail`) stands for; one object a process, shared by all episodes."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Package and version of code and data, for the trajectory's header."""
        ...

    def splits(self) -> Mapping[str, int]:
        """Number of tasks by split."""
        ...

    def task(self, split: str, index: int) -> Task:
        """Raises JobFailure for an unknown split or an index out of range."""
        ...

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        """A fresh environment for one episode. Raises JobFailure likewise, and for unknown args."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One reply of the engine, validated: lengths agree, logprobs are finite, spans tile the ids."""

    ids: array[int]
    logprobs: array[float]
    versions: Sequence[VersionSpan]
    finish: Finish
    text: str = ""
    cached_tokens: int = 0


class Engine(Protocol):
    """Token ids in, token ids out."""

    def room(self, prompt: int) -> int:
        """How many tokens may be sampled after a prompt of that many tokens before the context is full (0: none)."""
        ...

    def generate(
        self,
        ids: array[int],
        *,
        sampling: Mapping[str, Json],
        max_new_tokens: int,
        key: str,
        check: Callable[[], None],
    ) -> Generated:
        """Sample a continuation of `ids`.

        An engine that is refusing, overloaded or paused is waited for; `check` is called while waiting and raises when
        the attempt must stop. `key` (the job id) keeps an episode on one server behind a router. finish ABORT carries
        the partial tokens of an interrupted generation. Raises EngineFailure, or JobFailure if the request is to blame.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A sampled turn taken apart; no text is lost: what is not a call or reasoning is content."""

    content: str
    calls: Sequence[Action] = ()
    errors: Sequence[str] = ()
    """What was wrong with calls that could not be read, in words for the policy."""
    reasoning: str = ""
    call_spans: Sequence[tuple[int, int]] = ()
    """One a call: its characters [start, end) in the decoded turn, without the stop token."""
    error_spans: Sequence[tuple[int, int]] = ()
    """One an error, likewise."""
    call_ids: Sequence[str] = ()
    """One a call in formats whose calls have ids ("": it has none); empty in all others."""


class Renderer(Protocol):
    """The chat template of one model as token ids. After `open` only bridges are rendered; sampled ids stay."""

    @property
    def stop_ids(self) -> Sequence[int]:
        """The tokens that end an assistant turn; the first is the one that the template writes there."""
        ...

    @property
    def vocab_size(self) -> int:
        """Every id that is rendered is below it."""
        ...

    def open(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        """The first prompt, generation prompt included. Raises JobFailure when the template cannot do it."""
        ...

    def read(self, ids: array[int]) -> ReadTurn:
        """Parse a whole sampled turn, stop token included if there is one."""
        ...

    def bridge(self, message: Message, replies: Sequence[Message], stop: int | None = None) -> array[int]:
        """The tokens from right behind the stop token of the turn `message` to the end of the next assistant header.

        `stop` is the token that ended the turn: in some families it is the header of who speaks next."""
        ...

    def is_end(self, id: int) -> bool:
        """Whether a turn that ends with this token needs no other one behind it."""
        ...

    def close(self, message: Message, replies: Sequence[Message]) -> int:
        """The token to put behind the turn `message`, which was cut, so that these replies may follow."""
        ...

    def call_id(self, id: str, name: str, n: int) -> str:
        """What to call the n-th call of an episode, of the tool `name`: by the id that the model gave it, if it gave
        one (else "") and the template takes that."""
        ...

    def answers(self, stop: int) -> frozenset[str]:
        """The roles that may answer a turn which ended with the token `stop`."""
        ...

    def complaint_role(self, stop: int | None) -> str:
        """The role in which to tell the policy that its turn, which ended with `stop`, could not be acted on."""
        ...

    def rewrites(self, messages: Sequence[Message], replies: Sequence[Message], tools: Sequence[Json]) -> bool:
        """Whether the template writes the conversation so far, its last turn included, otherwise once replies follow.

        Raises JobFailure when the template cannot do it."""
        ...


class Journal(Protocol):
    """Where an attempt's events go."""

    def append(self, event: Event) -> None:
        """Make the event durable. Raises Fenced when the attempt has lost its lease."""
        ...

    def check(self) -> None:
        """Raise when the attempt must stop: fenced, draining, cancelled, past its deadline."""
        ...
