"""The interface to one kind of inference server: its requests, its replies and its control calls.
`sglang` and `vllm` implement it.

It knows nothing of retries or of other engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rollq_worker.engine.exchange.prompts import Prompt, collapsed, write_ids
from rollq_worker.engine.limits import ANY_ID, ContextLimits
from rollq_worker.protocols import Adapter, Generated, SampleRequest
from rollq_worker.remote.http_client import Response

PAUSED = "it is paused"
"""Reason why a paused engine takes no requests."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of one engine, of all its data-parallel ranks together."""

    running: int
    """Requests that it generates for now."""
    waiting: int
    """Requests in its own queue."""
    token_usage: float
    """Share of its KV cache that running requests hold, in the fullest rank, without entries that
    could be evicted.
    """
    used_tokens: int = 0
    """Tokens in its KV cache, which every step of a generation changes; 0 also where it does not
    tell.
    """

    @property
    def shows_progress(self) -> bool:
        """True if a generation that goes on would change it."""
        return self.used_tokens > 0 or self.running == 0


class NotReady(NamedTuple):
    """Reason why an engine takes no requests."""

    reason: str
    is_unreachable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request for a generation, of at most `turn.max_new_tokens` tokens."""

    turn: SampleRequest
    """The turn to sample, as the pool was asked for it."""
    prompt: Prompt
    """The prompt's ids as digits."""
    rid: str
    """Name of the request at the engine, which no other has."""
    stop_ids: Sequence[int] = ()
    """Token ids that end the generation, besides those of the job."""
    vocabulary: int = ANY_ID
    """Sampled ids are below this."""
    adapter: Adapter | None = None

    @property
    def sent(self) -> Prompt:
        """The prompt with a single placeholder for each image. The server repeats it as its image
        processor requires.
        """
        images = self.turn.images
        if images is None:
            return self.prompt
        return write_ids(collapsed(self.turn.ids, images.token))


class Server(Protocol):
    """One server. Each question has a timeout."""

    path: str
    """Path of generation requests."""

    def write_body(self, request: GenerationRequest) -> bytes:
        """The body of the request. Raises JobFailure for a parameter that this kind lacks."""
        ...

    def read_reply(self, body: bytes, request: GenerationRequest) -> Generated:
        """Reads the body of a 200. Raises RequestFailed for an unreadable one, and the error that
        the engine's finish reason stands for.
        """
        ...

    def refusal(self, response: Response, request: GenerationRequest) -> Exception:
        """The error that another status stands for: one of those of `replies.read_refusal`."""
        ...

    def is_other_server(self, status: int) -> bool:
        """True if this status, in answer to a probe, shows another kind of server."""
        ...

    def why_not_ready(self, *, hung: bool) -> NotReady | None:
        """The reason why the engine takes no requests; None when it takes them. With `hung` it did
        not answer before, so a health check must show that it generates.
        """
        ...

    def objection(self) -> str:
        """The reason why its tokens cannot be trained on, with the remedy; "" without one."""
        ...

    def is_hung(self) -> bool:
        """True if the engine's scheduler answers nothing although it is not paused."""
        ...

    def is_paused(self) -> bool:
        """True if the engine reports a pause."""
        ...

    def abort(self, rid: str) -> bool:
        """Has the engine end this request with the tokens so far. False if it refuses."""
        ...

    def tokenize(self, text: str) -> object:
        """The reply of /tokenize; None if the server has no such path. Raises NoResponse while the
        engine is away.
        """
        ...

    def load(self) -> EngineLoad | None:
        """The engine's load; None if it does not report one. Raises NoResponse while it is away."""
        ...

    def limits(self) -> ContextLimits:
        """The limits that it reports. Raises NoResponse while it is away."""
        ...

    def model(self) -> str | None:
        """The folder or name of its model; None if it does not name one. Raises NoResponse while it
        is away.
        """
        ...

    def weight_version(self) -> str | None:
        """The version of its weights; None if it does not report one. Raises NoResponse while it is
        away.
        """
        ...
