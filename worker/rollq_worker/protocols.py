"""The protocols inside a worker: the engine, renderer and journal of the agent loop, and the values
that they exchange.

`rollq.env` has those of environments and users. `rollq_worker.fakes` implements each in a few
lines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rollq.env import Action, ContextHook, Image
from rollq.errors import AgentFailure, RolloutFailure, RollqError
from rollq.events import Event, Finish, Message, VersionSpan
from rollq.job import Json, served_adapter
from rollq.trajectory_extras import ExpertShape, Extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Asks for the routed experts of the tokens from `start` on."""

    start: int
    shape: ExpertShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Asks for the logprobs of the prompt's own tokens behind place `start`."""

    start: int
    top_k: int = 0
    """Number of likeliest tokens to name at each place."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The logprobs of a prompt's tokens behind `Scoring.start`, each given all tokens before it:
    log_softmax(logits), whatever the sampling parameters. One entry for each of these tokens.
    """

    logprobs: array[float]
    """array('d')."""
    top_ids: Sequence[array[int]] = ()
    """The likeliest tokens at each place, the likeliest first, at most `top_k`. Empty if none were
    asked for, or the engine names none.
    """
    top_logprobs: Sequence[array[float]] = ()
    """Their logprobs, falling."""


@dataclass(frozen=True, slots=True)
class PromptImages:
    """The images of a prompt, in order."""

    token: int
    """The token that stands for images: the prompt has a run of it for each."""
    images: Sequence[Image]


class Adapter(NamedTuple):
    """A version of a LoRA adapter."""

    name: str
    version: str
    """"" where the engine itself has the adapter, by its name alone."""

    @property
    def served(self) -> str:
        """The engines' name of it."""
        return served_adapter(self.name, self.version) if self.version else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Request for a continuation of a prompt."""

    ids: array[int]
    """The prompt. It may grow later, as a trace does."""
    sampling: Mapping[str, Json]
    max_new_tokens: int
    """Most tokens of the continuation; fewer where the context ends before."""
    key: str
    """The job's id. Its group keeps siblings on one server."""
    check: Callable[[], None]
    """Called while the engine is waited for. It raises when the attempt must stop."""
    routing: Routing | None = None
    """The routed experts to ask for."""
    images: PromptImages | None = None
    """The images of the prompt."""
    scoring: Scoring | None = None
    """Logprobs of the prompt's own tokens to ask for."""
    accepts: Callable[[str], bool] | None = None
    """Decides if weights of that version may sample; None if all may. It may raise an error that
    stops the attempt.
    """
    pinned: str = ""
    """The only version that may sample, where the job names one. The call does not wait for it."""
    adapter: Callable[[], Adapter] | None = None
    """Names the adapter to sample with; called for each try. None for no adapter. The reply has the
    adapter's version. It may raise an error that stops the attempt.
    """
    model: str = ""
    """The one of `Job.models` that samples; "" for the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One reply of the engine, checked where it is read and not behind that: there are no more ids
    than were asked for, each has a logprob, which is finite and not above 0, and the spans tile
    them.
    """

    ids: array[int]
    """array('I'): the sampled tokens, stop token included."""
    logprobs: array[float]
    """array('f'), one per token."""
    versions: Sequence[VersionSpan]
    """Spans that tile `[0, len(ids))`."""
    finish: Finish
    """Reason for which the generation ended."""
    text: str = ""
    """The engine's own text, for people."""
    cached_tokens: int = 0
    """Tokens of the request that were in the engine's prefix cache."""
    routed_experts: Extra | None = None
    """Rows that `Routing` requested: one for each token from its start on, but for the last one
    that was sampled. The engine never read that one.
    """
    scores: Scores | None = None
    """Scores that `Scoring` requested."""


class Engine(Protocol):
    """Token ids in, token ids out."""

    def room(self, prompt: int) -> int:
        """Number of tokens that the context has left after a prompt of that many tokens."""
        ...

    def generate(self, request: SampleRequest) -> Generated:
        """Samples a continuation. A prompt that fills the context yields LENGTH and no ids.

        Waits for an engine that refuses connections, is overloaded or paused, and calls
        `request.check` meanwhile. A reply that finished with ABORT has the tokens sampled before
        the interruption. Raises EngineFailure, or JobFailure if the request is to blame.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A sampled turn, parsed. No text is lost: all but calls and reasoning is content."""

    content: str
    """Words to the user."""
    calls: Sequence[Action] = ()
    """The tool calls that could be read, in order."""
    errors: Sequence[str] = ()
    """Errors of unreadable calls, in words for the policy."""
    reasoning: str = ""
    """The model's reasoning, without its tags."""
    call_ids: Sequence[str] = ()
    """Id of each call ("" without one) in formats whose calls have ids. Else empty."""


class TurnRefused(RollqError):
    """The chat template cannot write the policy's turn."""


class Renderer(Protocol):
    """The chat template of one model as token ids. After `open` only bridges are rendered, never
    sampled ids.
    """

    @property
    def stop_ids(self) -> Sequence[int]:
        """The tokens that end an assistant turn; the template writes the first one."""
        ...

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary; rendered ids are below it."""
        ...

    def open(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        """The first prompt, generation prompt included, which the caller does not change. Raises
        JobFailure when the template cannot do it.
        """
        ...

    def read(self, ids: array[int]) -> ReadTurn:
        """Parses a whole sampled turn, stop token included if there is one."""
        ...

    def bridge(
        self, message: Message, replies: Sequence[Message], stop: int | None = None
    ) -> array[int]:
        """The tokens after the stop token of the turn `message`, up to the end of the next
        assistant header.

        `stop` is the token that ended the turn. In some model families it is also the header of the
        next message.
        """
        ...

    def is_end(self, id: int) -> bool:
        """True if a turn that ends with this token is closed, and needs no other end token."""
        ...

    def close(self, message: Message, replies: Sequence[Message]) -> int:
        """The token that closes the turn `message`, so that these replies may follow: the one that
        the template writes there. The turn has no end token.
        """
        ...

    def call_id(self, id: str, name: str, n: int) -> str:
        """The id of an episode's n-th call, a call of the tool `name`.

        It is the model's own `id` if there is one (else "") and the template takes it.
        """
        ...

    def reopen(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        """The prompt of a conversation that was sampled in part. Raises TurnRefused when the
        template cannot write one of its turns, and JobFailure when it cannot write the rest.
        """
        ...

    def replying_roles(self, stop: int) -> frozenset[str]:
        """The roles that may reply to a turn that ended with the token `stop`."""
        ...

    @property
    def image_token(self) -> int:
        """The token that stands for images. Raises JobFailure for a model of text."""
        ...

    def image_length(self, width: int, height: int) -> int:
        """The number of tokens of an image of this size in pixels. Raises JobFailure for a model of
        text.
        """
        ...

    def complaint_role(self, stop: int | None) -> str:
        """The role of the message that tells the policy the errors of a turn that ended with
        `stop`.
        """
        ...

    def rewritten(
        self,
        messages: Sequence[Message],
        sampled: array[int],
        replies: Sequence[Message],
        tools: Sequence[Json],
    ) -> array[int] | None:
        """The ids of the conversation as the template writes it; None where they are those of the
        trace.

        `messages` end with the turn that was sampled as `sampled`. Raises TurnRefused when the
        template cannot write that turn, and JobFailure when it cannot write the replies.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Shortening of a conversation that has grown long."""

    shorten: ContextHook
    """A conversation whose last turn has no reply ends with the answer to `request_for`."""
    request_for: Callable[[int], str] = lambda tokens: ""
    """The request to the policy, given the number of tokens, before the conversation is shortened;
    "" without one.
    """
    over: int = 0
    """Most tokens of the first prompt, if it is not 0."""
    failure: type[RolloutFailure] = AgentFailure
    """The failure that `shorten` raises."""
    longest_s: float = 60.0
    """Longest time in seconds that `shorten` takes."""


class Journal(Protocol):
    """The record of an attempt's events."""

    def append(self, event: Event) -> None:
        """Makes the event durable. Raises Fenced when the attempt has lost its lease."""
        ...

    def check(self) -> None:
        """Raises when the attempt must stop: fenced, draining, cancelled, past its deadline."""
        ...
