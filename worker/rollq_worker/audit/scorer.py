"""Asks an engine for the logprobs of tokens that were sampled before.

The invariant: the logprobs it returns are finite and belong to the ids it was given, under the
weights that the engine named at the start. `sglang` and `vllm` have the forms of the requests. It
knows nothing of trajectories.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import uuid
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rollq.errors import EngineFailure, RollqError
from rollq.job import Json
from rollq.urls import mask_url
from rollq_worker.engine.exchange.http import EngineHttp
from rollq_worker.engine.exchange.replies import read_error
from rollq_worker.engine.limits import ContextLimits
from rollq_worker.protocols import Adapter, Scores
from rollq_worker.remote.http_client import ConnectFailed, NoResponse, Response, ResponseTimeout
from rollq_worker.remote.waiting import backoff, wait

TIMEOUT_S = 300.0
BUSY = frozenset({429, 503})
BUSY_TRIES = 6
BUSY_BACKOFF_S = (1.0, 8.0)
"""First and longest pause in seconds between tries while the engine's queue is full."""


class ScoringRefused(RollqError):
    """The engine refuses to score these tokens. The message says why."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens that the engine sampled, with the logprobs that it reported."""

    ids: array[int]
    logprobs: array[float]
    """array('d')."""
    stopped: bool
    """True if the last one ended the turn."""


class ScoringConnection:
    """One engine, used by several threads."""

    def __init__(self, url: str) -> None:
        self.url = mask_url(url)
        """The address without the login."""
        # With the likeliest tokens a response takes 4 kB per token.
        self.http = EngineHttp(url, max_bytes=1 << 30)

    def close(self) -> None:
        self.http.close()

    def get_json(self, path: str) -> object:
        """None if the server does not have the path."""
        response = self.send(path)
        if response.status in BUSY | {401, 403}:
            raise self.failure(response)
        return response.json() if response.status == 200 else None

    def send(self, path: str, body: object = None) -> Response:
        """Sends a POST, or a GET without a body. It is repeated only if the engine was busy,
        because a request that broke the engine must not be sent twice.
        """
        tries = 0
        while True:
            try:
                if body is None:
                    response = self.http.get(path, timeout_s=TIMEOUT_S)
                else:
                    data = json.dumps(body, separators=(",", ":")).encode()
                    response = self.http.post(path, data, timeout_s=TIMEOUT_S)
            except ConnectFailed as e:
                raise EngineFailure(f"no engine at {self.url}: {e}") from e
            except ResponseTimeout as e:
                raise EngineFailure(
                    f"{self.url}{path}: no answer within {TIMEOUT_S:g} s (is it paused?)"
                ) from e
            except NoResponse as e:
                raise EngineFailure(f"{self.url}{path}: the engine broke: {e}") from e
            tries += 1
            if response.status not in BUSY or tries == BUSY_TRIES:
                return response
            wait(backoff(tries - 1, *BUSY_BACKOFF_S), lambda: None)

    def failure(self, response: Response) -> EngineFailure:
        return EngineFailure(f"{self.url} answered {response.status}: {read_error(response.body)}")


class Scorer(ABC):
    """One engine, used by several threads.

    Scores are of a prefill of this audit: what the engine cached while it decoded, for a rollout or
    in `sample`, is not read. With it a token would be scored from the very numbers that it was
    sampled from.
    """

    cuts: bool
    """True if the engine reports logprobs of the distribution that top_p, top_k and min_p have cut.
    """

    def __init__(self, engine: ScoringConnection) -> None:
        self.url = engine.url
        self._engine = engine
        self._scored = f"rollq audit {uuid.uuid4().hex} scored"
        self._decoded = f"rollq audit {uuid.uuid4().hex} decoded"
        self.version = self._version()
        """The version of the engine's weights. None if it does not say."""
        limits = self._limits()
        self.max_tokens = min(limits.prompt, limits.context, ContextLimits().context) - 1
        """Number of tokens that can be scored at once."""

    @abstractmethod
    def _version(self) -> str | None: ...

    @abstractmethod
    def _limits(self) -> ContextLimits: ...

    @abstractmethod
    def vocabulary_end(self, ids: Iterable[int]) -> int | None:
        """The bound below which each of these ids may be sent.

        None if the engine does not say (a router, the replay engine).
        """

    @abstractmethod
    def score(
        self, ids: array[int], start: int, *, likeliest: int = 0, adapter: Adapter | None = None
    ) -> Scores:
        """The scores of `ids[start + 1:]`, and of so many likeliest tokens (fewer where the engine
        has a bound), with a LoRA adapter or without one. Raises ScoringRefused, EngineFailure.
        """

    @abstractmethod
    def score_decoded(
        self, ids: array[int], token: int, temperature: float, adapter: Adapter | None = None
    ) -> float:
        """The logprob of `token` after `ids` at that temperature, which the engine applies to what
        it decodes only: it decodes one token. Raises ScoringRefused, EngineFailure.
        """

    @abstractmethod
    def sample(
        self, ids: array[int], sampling: Mapping[str, Json], adapter: Adapter | None = None
    ) -> SampledTokens:
        """Tokens that the engine decodes after `ids`. Raises ScoringRefused, EngineFailure."""

    def close(self) -> None:
        self._engine.close()

    def _check_version(self, version: str | None) -> None:
        if self.version is not None and version != self.version:
            raise EngineFailure(
                f"{self.url}: one reply is by weights {self.version!r}, another by {version!r}: "
                "the weights changed in the middle of the audit, or the servers behind a router "
                "differ"
            )

    def _without(self, adapter: Adapter) -> ScoringRefused:
        return ScoringRefused(
            "the engine lacks the adapter that sampled them; `rollq engines sync --engine "
            f"{self.url} --adapter {adapter.name} --path DIR --version {adapter.version}` loads it"
        )

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except (
            AttributeError,
            LookupError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
        ) as e:
            raise EngineFailure(f"{self.url}: not a scoring reply ({type(e).__name__}: {e})") from e
