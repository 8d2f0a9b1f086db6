"""Scores and samples over vLLM's `/inference/v1/generate` (0.32)."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from rollq.errors import EngineFailure
from rollq.events import Finish
from rollq.job import Json
from rollq_worker.audit.scorer import (
    SampledTokens,
    Scorer,
    ScoringConnection,
    ScoringRefused,
)
from rollq_worker.engine.exchange.replies import finite, read_error
from rollq_worker.engine.limits import ANY_ID, UNLIMITED, ContextLimits
from rollq_worker.engine.vllm.generate import read_scores
from rollq_worker.engine.vllm.server import VllmServer
from rollq_worker.protocols import Adapter, Scores, Scoring

LIKELIEST = 20
"""vLLM's own bound of the tokens that it reports at a position (--max-logprobs)."""


class VllmScorer(Scorer):
    """vLLM shares cached prefixes among requests of the same `cache_salt` only."""

    cuts = True

    def __init__(self, engine: ScoringConnection, server: VllmServer) -> None:
        self._server = server
        super().__init__(engine)
        if objection := server.objection():
            raise EngineFailure(f"{self.url}: {objection}")
        info: Any = engine.get_json("/server_info?config_format=json")
        with self._typed_errors():
            config = info["vllm_config"]["model_config"] if info else {}
            most = config.get("max_logprobs", LIKELIEST)
            self._likeliest = UNLIMITED if most < 0 else most

    def _version(self) -> str | None:
        return self._server.weight_version()

    def _limits(self) -> ContextLimits:
        return self._server.limits()

    def vocabulary_end(self, ids: Iterable[int]) -> int:
        """vLLM refuses an unknown id, and lives."""
        return ANY_ID

    def score(
        self, ids: array[int], start: int, *, likeliest: int = 0, adapter: Adapter | None = None
    ) -> Scores:
        count = min(likeliest, self._likeliest)
        params = {"max_tokens": 1, "prompt_logprobs": count}
        with self._typed_errors():
            reply = self._generate(ids, params, self._scored, adapter)
            return read_scores(reply, ids, Scoring(start=start, top_k=count))

    def score_decoded(
        self, ids: array[int], token: int, temperature: float, adapter: Adapter | None = None
    ) -> float:
        # It lists as many tokens as it is asked for, beginning with the one that it samples.
        wanted = [token, token]
        params = {"temperature": temperature, "logprob_token_ids": wanted, "logprobs": len(wanted)}
        with self._typed_errors():
            reply = self._generate(ids, {"max_tokens": 1, **params}, self._scored, adapter)
            [position] = reply["choices"][0]["logprobs"]["content"]
            by_id = {entry["token_id"]: entry["logprob"] for entry in position["top_logprobs"]}
            return finite([by_id[token]])[0]

    def sample(
        self, ids: array[int], sampling: Mapping[str, Json], adapter: Adapter | None = None
    ) -> SampledTokens:
        params = {**sampling, "logprobs": 0}
        params["max_tokens"] = params.pop("max_new_tokens")
        with self._typed_errors():
            choice = self._generate(ids, params, self._decoded, adapter)["choices"][0]
            entries = choice["logprobs"]["content"]
            logprobs = finite([entry["logprob"] for entry in entries])
            stopped = choice["finish_reason"] == Finish.STOP
            return SampledTokens(
                array("I", [entry["token_id"] for entry in entries]), logprobs, stopped
            )

    def _generate(
        self, ids: array[int], params: Mapping[str, Any], salt: str, adapter: Adapter | None
    ) -> dict[str, Any]:
        """Sends a request for a generation. Returns the reply."""
        body = {"token_ids": ids.tolist(), "sampling_params": params, "cache_salt": salt}
        body |= {"model": adapter.served} if adapter else {}
        response = self._engine.send(self._server.path, body)
        if response.status == 404 and adapter:
            raise self._without(adapter)
        if response.status == 400:
            raise ScoringRefused(read_error(response.body))
        if response.status != 200:
            raise self._engine.failure(response)
        reply: dict[str, Any] = json.loads(response.body)
        for span in reply["choices"][0]["weight_versions"] or ():
            self._check_version(span["version"])
        return reply
