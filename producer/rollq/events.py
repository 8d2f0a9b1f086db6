"""The events of an episode, as its journal holds them.

Texts that came over the wire are decoded when they are first asked for, so that a trainer, which
reads tokens, never pays for them. Pure values, standard library only.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rollq.errors import FailureClass
from rollq.job import Json
from rollq.trajectory_extras import Extra

Message = dict[str, Any]
"""One chat message in OpenAI's form; the `arguments` of a tool call are a JSON string."""


class Stop(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment closed it."""
    TURNS = "turns"
    """The turn budget is spent."""
    LENGTH = "length"
    """A token budget is spent: of the trajectory, of the turn or of the engine's context."""
    MALFORMED = "malformed"
    """Three tool calls in a row could not be read."""
    ABORTED = "aborted"
    """Cancelled from outside. Never trained."""
    FAILED = "failed"
    """Attempts are spent; see `failure`. Never trained."""


GRADED = frozenset({Stop.DONE, Stop.TURNS, Stop.LENGTH, Stop.MALFORMED})
"""Stops that carry a reward and may be trained on."""


class Finish(StrEnum):
    """End of one generation, as the engine reports it."""

    STOP = "stop"
    """The policy sampled a stop token."""
    LENGTH = "length"
    """`max_new_tokens` or the context is spent."""
    ABORT = "abort"
    """Interrupted, as by an update of weights; the turn goes on with another reply."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """The sampled tokens `[start, end)` of one `Sampled` came from weights `version`. The name is
    the engine's, unchanged.
    """

    version: str
    start: int
    end: int


class DeferredTexts:
    """Base of the events that carry texts. Decoding leaves the texts out; `_read` fills them in
    when one is first asked for.
    """

    __slots__ = ("_read",)
    _read: Callable[[], Mapping[str, Any]]
    """Fills in every field that was left out. Raises ContractError."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Only for an unset slot. An event built by hand has no `_read`, which raises
            # AttributeError as usual.
            for field_name, value in object.__getattribute__(self, "_read")().items():
                object.__setattr__(self, field_name, value)
            return object.__getattribute__(self, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt(DeferredTexts):
    """The start of a trace: a conversation rendered from scratch."""

    ids: array[int]
    """array('I'): the rendered prompt, generation prompt included."""
    messages: Sequence[Message]
    """The conversation so far: system prompt and the user's first message."""
    tools: Sequence[Json]
    """Tool schemas in OpenAI's form."""
    at: float = 0.0
    """Unix time in seconds."""
    model: str = ""
    """The one of `Job.models` whose conversation it is. "" for the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(DeferredTexts):
    """One reply of the engine. A turn has several when its generation was interrupted; all but the
    last then finish by abort.
    """

    turn: int
    """Number of the turn, from 0."""
    ids: array[int]
    """array('I'): the sampled tokens, stop token included; never re-tokenised."""
    logprobs: array[float]
    """array('f'), one per token: logprobs of the sampling distribution, as the engine reports them.
    """
    versions: Sequence[VersionSpan]
    """Spans that tile `[0, len(ids))`."""
    finish: Finish
    """End of this reply."""
    text: str = ""
    """The engine's own text, for people; nothing is computed from it."""
    cached_tokens: int = 0
    """Tokens of the request that the engine had in its prefix cache."""
    at: float = 0.0
    """Unix time in seconds when the request was sent."""
    seconds: float = 0.0
    """Seconds until the reply was there, waiting included."""
    trace: int | None = None
    """Number of the trace that it continues, from 0. None for the latest one."""
    asked: Mapping[str, Json] = field(default_factory=dict)
    """Options of an agent program's request beside messages and tools, such as another
    temperature than the job's.
    """
    experts: Extra | None = None
    """Experts of the trace's tokens that have no row yet, for jobs with `routed_experts`. They lack
    the last sampled one, which the engine never read. `rollq.wire.routed_experts` joins them.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(DeferredTexts):
    """Outcome of a finished turn. Every turn ends with exactly one."""

    turn: int
    """Number of the turn, from 0."""
    message: Message
    """The turn as an assistant message in OpenAI's form."""
    actions: Sequence[Mapping[str, Json]]
    """Actions that the environment carried out, each as `{"name": ..., "arguments": {...}}`.

    Empty when the turn could not be acted on; more than one only with several calls per turn.
    `"user": [...]` is added where the user said something during the action that is not the reply
    itself, `"reward": r` where the environment gave the action a reward, `"unclosed": true` where
    the turn ended without the end tag of the call.
    """
    replies: Sequence[Message]
    """The tool results or user messages that answer the turn, one per action. Those of an episode's
    last turn get no tokens.
    """
    ids: array[int]
    """array('I'): the bridge, which runs from after the sampled stop token to the end of the next
    assistant header.
    """
    errors: Sequence[str] = ()
    """Why the turn could not be read, in words that the policy was shown."""
    extra_calls: int = 0
    """Number of further tool calls in the turn that were not carried out."""
    done: bool = False
    """The environment closed the episode."""
    at: float = 0.0
    """Unix time in seconds when the actions began."""
    seconds: float = 0.0
    """Seconds that they took, the user's answer included."""
    trace: int | None = None
    """Trace as in `Sampled.trace`."""

    @property
    def reward(self) -> float | None:
        """The sum of its actions' rewards; None when none of them has one. Not a part of the
        episode's reward.
        """
        rewards = [action["reward"] for action in self.actions if "reward" in action]
        return float(sum(rewards)) if rewards else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted(DeferredTexts):
    """Action of an agent program in the environment, between turns. The agent loop's own are in
    `Observed`.
    """

    action: Mapping[str, Json]
    """Action as in `Observed.actions`. The first one, which opens the episode, has the name "" and
    no arguments.
    """
    text: str
    """The observation."""
    done: bool = False
    """The environment closed the episode."""
    at: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied(DeferredTexts):
    """A turn of another model than those that are trained. It is of no trace, so that nothing of it
    is trained; it is here for an attempt that resumes.
    """

    model: str
    """Name of the model in `Job.models`."""
    request: str
    """Digest of the conversation and of the options that it answers."""
    ids: array[int]
    """array('I'): the sampled tokens."""
    finish: Finish
    """Reason for which the turn ended."""
    text: str = ""
    """The engine's own text, for people."""
    at: float = 0.0
    """Unix time in seconds when the request was sent."""
    seconds: float = 0.0
    """Seconds until the turn was there, waiting included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(DeferredTexts):
    """The end of the episode: always the last event of a finished trajectory."""

    stop: Stop
    """Why it ended."""
    reward: float | None
    """The reward; None exactly when the stop is not graded."""
    failure: FailureClass | None = None
    """Party at fault, where it failed."""
    info: Mapping[str, Json] = field(default_factory=dict)
    """The grader's facts; for a failure, the reason."""
    at: float = 0.0


TokenEvent = Prompt | Sampled | Observed
Event = TokenEvent | Acted | Replied | Closed
