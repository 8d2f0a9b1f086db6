"""Asks an engine, over SGLang's native API, for the logprobs of tokens that were sampled before.

The invariant: the logprobs it returns are finite and belong to the ids it was given, under the
weights that the engine named at the start. It knows nothing of trajectories.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollq.errors import EngineFailure, RollqError
from rollq.events import Finish
from rollq.job import Json
from rollq.urls import mask_url
from rollq_worker.engine.http import EngineHttp
from rollq_worker.engine.limits import ContextLimits, read_limits
from rollq_worker.engine.replies import ADAPTER_MISSING, read_error
from rollq_worker.protocols import Adapter
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
class Scores:
    """Scores of the tokens after the start, one entry each."""

    logprobs: array[float]
    """array('d'): log_softmax(logits), whatever the sampling parameters."""
    likeliest: Sequence[Sequence[float]]
    """The logprobs of the likeliest tokens at each position, falling; all empty if the engine does
    not report them.
    """


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens that the engine sampled, with the logprobs that it reported."""

    ids: array[int]
    logprobs: array[float]
    """array('d')."""
    stopped: bool
    """True if the last one ended the turn."""


class Scorer:
    """One engine, used by several threads.

    Scores are of a prefill of this audit: what the engine cached while it decoded, for a rollout or
    in `sample`, is not read. With it a token would be scored from the very numbers that it was
    sampled from.
    """

    def __init__(self, url: str) -> None:
        self.url = mask_url(url)
        """Without the login."""
        # SGLang shares cached prefixes among requests of the same `extra_key` only.
        self._scored = f"rollq audit {uuid.uuid4().hex} scored"
        self._decoded = f"rollq audit {uuid.uuid4().hex} decoded"
        # With the likeliest tokens a response takes 4 kB per token.
        self._http = EngineHttp(url, max_bytes=1 << 30)
        self.version = self._version()
        """The version of the engine's weights. None if it does not say."""
        limits = read_limits(self._get_json)
        self.max_tokens = min(limits.prompt, limits.context, ContextLimits().context) - 1
        """Number of tokens that can be scored at once."""

    def vocabulary_end(self, ids: Iterable[int]) -> int | None:
        """The bound below which each of these ids is in the vocabulary of the engine's tokenizer.

        None if the engine does not say (a router, the replay engine).
        """
        # Ids above its tokenizer's are padding ids, and few.
        highest = sorted(set(ids))[-256:]
        body = {"tokens": [[id] for id in highest], "skip_special_tokens": False}
        response = self._send("/detokenize", body)
        reply = response.json() if response.status == 200 else None
        texts = reply.get("text") if isinstance(reply, dict) else None
        if not isinstance(texts, list) or len(texts) != len(highest):
            return None
        # An id without a token is decoded to an empty text.
        return max((id + 1 for id, text in zip(highest, texts, strict=True) if text), default=0)

    def score(
        self, ids: array[int], start: int, *, likeliest: int = 0, adapter: Adapter | None = None
    ) -> Scores:
        """The logprobs of `ids[start + 1:]`, each given all ids before it, with a LoRA adapter or
        without one. Raises ScoringRefused, EngineFailure.
        """
        body: dict[str, Any] = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            "extra_key": self._scored,
        }
        if likeliest:
            body["top_logprobs_num"] = likeliest
        with self._typed_errors():
            return self._read(self._generate(body, adapter), ids[start:], bool(likeliest))

    def score_decoded(
        self, ids: array[int], token: int, temperature: float, adapter: Adapter | None = None
    ) -> float:
        """The logprob of `token` after `ids` at that temperature, which the engine applies to what
        it decodes only: it decodes one token. Raises ScoringRefused, EngineFailure.
        """
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": temperature},
            "return_logprob": True,
            "token_ids_logprob": [token],
            "extra_key": self._scored,
        }
        with self._typed_errors():
            meta = self._generate(body, adapter)
            if "output_token_ids_logprobs" not in meta:
                raise ScoringRefused(
                    "the engine reports no logprobs of the tokens that it is asked for"
                )
            [[[logprob, id, *_]]] = meta["output_token_ids_logprobs"]
            if id != token:
                raise EngineFailure(f"{self.url}: a logprob of token {id} in place of {token}")
            return _finite([logprob])[0]

    def sample(
        self, ids: array[int], sampling: Mapping[str, Json], adapter: Adapter | None = None
    ) -> SampledTokens:
        """Tokens that the engine decodes after `ids`. Raises ScoringRefused, EngineFailure."""
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": sampling,
            "return_logprob": True,
            "extra_key": self._decoded,
        }
        with self._typed_errors():
            meta = self._generate(body, adapter)
            entries = meta["output_token_logprobs"]
            logprobs = _finite([entry[0] for entry in entries])
            stopped = meta["finish_reason"]["type"] == Finish.STOP
            return SampledTokens(array("I", [entry[1] for entry in entries]), logprobs, stopped)

    def close(self) -> None:
        self._http.close()

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as e:
            raise EngineFailure(f"{self.url}: not a scoring reply ({type(e).__name__}: {e})") from e

    def _generate(self, body: dict[str, Any], adapter: Adapter | None) -> dict[str, Any]:
        """Sends a request for a generation. Returns the reply's `meta_info`."""
        response = self._send(
            "/generate", body | ({"lora_path": adapter.served} if adapter else {})
        )
        if response.status == 400:
            raise ScoringRefused(self._refusal(read_error(response.body), adapter))
        if response.status != 200:
            raise self._failure(response)
        meta: dict[str, Any] = json.loads(response.body)["meta_info"]
        if self.version is not None and meta.get("weight_version", self.version) != self.version:
            raise EngineFailure(
                f"{self.url}: one reply is by weights {self.version!r}, another by "
                f"{meta['weight_version']!r}: the weights changed in the middle of the audit, or "
                "the servers behind a router differ"
            )
        return meta

    def _refusal(self, error: str, adapter: Adapter | None) -> str:
        if adapter is None or not ADAPTER_MISSING.match(error):
            return error
        return (
            "the engine lacks the adapter that sampled them; `rollq engines sync --engine "
            f"{self.url} --adapter {adapter.name} --path DIR --version {adapter.version}` loads it"
        )

    def _read(self, meta: dict[str, Any], ids: array[int], likeliest: bool) -> Scores:
        entries = meta["input_token_logprobs"]
        if [entry[1] for entry in entries] != ids.tolist():
            raise EngineFailure(
                f"{self.url}: the {len(entries)} logprobs are not those of the {len(ids)} ids sent"
            )
        logprobs = _finite([entry[0] for entry in entries[1:]])
        tops = meta.get("input_top_logprobs") if likeliest else None
        if not tops:
            return Scores(logprobs, [()] * len(logprobs))
        if len(tops) != len(entries):
            raise EngineFailure(
                f"{self.url}: {len(tops)} lists of likeliest tokens for {len(entries)} tokens"
            )
        return Scores(logprobs, [_finite([entry[0] for entry in top]) for top in tops[1:]])

    def _version(self) -> str | None:
        for path in ("/model_info", "/get_model_info"):  # routers only know the second
            info = self._get_json(path)
            version = info.get("weight_version") if isinstance(info, dict) else None
            if isinstance(version, str):
                return version
        return None

    def _get_json(self, path: str) -> object:
        response = self._send(path)
        if response.status in (401, 403):
            raise self._failure(response)
        return response.json() if response.status == 200 else None

    def _send(self, path: str, body: object = None) -> Response:
        """Sends a POST, or a GET without a body. It is repeated only if the engine was busy,
        because a request that broke the engine must not be sent twice.
        """
        tries = 0
        while True:
            try:
                if body is None:
                    response = self._http.get(path, timeout_s=TIMEOUT_S)
                else:
                    data = json.dumps(body, separators=(",", ":")).encode()
                    response = self._http.post(path, data, timeout_s=TIMEOUT_S)
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

    def _failure(self, response: Response) -> EngineFailure:
        return EngineFailure(f"{self.url} answered {response.status}: {read_error(response.body)}")


def _finite(logprobs: Sequence[float]) -> array[float]:
    if not all(map(math.isfinite, logprobs)):
        raise ValueError("a logprob is not finite")
    return array("d", logprobs)
