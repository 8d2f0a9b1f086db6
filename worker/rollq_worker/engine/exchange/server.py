"""One kind of server, as the rest of `engine` sees it: its form of a request and of a reply, and
everything else that it is asked. `sglang` and `vllm` implement it.

It knows nothing of retries or of other engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollq_worker.engine.exchange.prompts import Prompt, collapsed, write_ids
from rollq_worker.engine.limits import ANY_ID, ContextLimits
from rollq_worker.engine.load import EngineLoad
from rollq_worker.protocols import Adapter, Generated, SampleRequest
from rollq_worker.remote.http_client import Response

PAUSED = "it is paused"
"""Why a paused engine takes no requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRequest:
    """One request for a generation, of at most `request.max_new_tokens` tokens."""

    request: SampleRequest
    prompt: Prompt
    """Its ids as digits."""
    rid: str
    """Its name at the engine, which no other request has."""
    stop_ids: Sequence[int] = ()
    """Ids that end it besides the job's own."""
    vocabulary: int = ANY_ID
    """Ids that are sampled are below."""
    adapter: Adapter | None = None

    @property
    def sent(self) -> Prompt:
        """The prompt with one placeholder for each image: the server makes as many of it as its own
        image processor says.
        """
        images = self.request.images
        if images is None:
            return self.prompt
        return write_ids(collapsed(self.request.ids, images.token))


class Server(Protocol):
    """One server. Each question has a timeout."""

    path: str
    """Where it is asked for a generation."""

    def write(self, one: OneRequest) -> bytes:
        """The body of the request. Raises JobFailure for a parameter that this kind lacks."""
        ...

    def read(self, body: bytes, one: OneRequest) -> Generated:
        """The body of a 200. Raises RequestFailed, and what the engine's own reason means."""
        ...

    def refusal(self, response: Response, one: OneRequest) -> Exception:
        """The error that another status means: one of those of `replies.read_refusal`."""
        ...

    def is_of_another(self, status: int) -> bool:
        """True if a probe that is answered so shows another kind of server."""
        ...

    def why_not_ready(self, *, hung: bool) -> tuple[str, bool]:
        """Why the engine takes no requests, and whether it is unreachable; ("", False) when it
        takes them. `hung`: it did not answer, so a health check must show that it generates.
        """
        ...

    def objection(self) -> str:
        """Why its tokens cannot be trained on, with the remedy, or ""."""
        ...

    def hangs(self) -> bool:
        """True if the engine's scheduler answers nothing although it is not paused."""
        ...

    def paused(self) -> bool:
        """True if the engine reports a pause."""
        ...

    def abort(self, rid: str) -> bool:
        """Have the engine end this request with the tokens so far. False when it could not be
        one.
        """
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
