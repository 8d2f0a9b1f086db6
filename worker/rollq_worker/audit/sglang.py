"""Scores and samples over SGLang's native API."""

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
    ScoringRefused,
)
from rollq_worker.engine.exchange.replies import ADAPTER_MISSING, finite, read_error
from rollq_worker.engine.limits import ContextLimits, read_limits
from rollq_worker.engine.sglang.generate import read_scores
from rollq_worker.protocols import Adapter, Scores, Scoring


class SGLangScorer(Scorer):
    """SGLang shares cached prefixes among requests of the same `extra_key` only."""

    cuts = False

    def _version(self) -> str | None:
        for path in ("/model_info", "/get_model_info"):  # routers only know the second
            info = self._engine.get_json(path)
            version = info.get("weight_version") if isinstance(info, dict) else None
            if isinstance(version, str):
                return version
        return None

    def _limits(self) -> ContextLimits:
        return read_limits(self._engine.get_json)

    def vocabulary_end(self, ids: Iterable[int]) -> int | None:
        # Ids above its tokenizer's are padding ids, and few.
        highest = sorted(set(ids))[-256:]
        body = {"tokens": [[id] for id in highest], "skip_special_tokens": False}
        response = self._engine.send("/detokenize", body)
        reply = response.json() if response.status == 200 else None
        texts = reply.get("text") if isinstance(reply, dict) else None
        if not isinstance(texts, list) or len(texts) != len(highest):
            return None
        # An id without a token is decoded to an empty text.
        return max((id + 1 for id, text in zip(highest, texts, strict=True) if text), default=0)

    def score(
        self, ids: array[int], start: int, *, likeliest: int = 0, adapter: Adapter | None = None
    ) -> Scores:
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
            scoring = Scoring(start=start, top_k=likeliest)
            return read_scores(self._generate(body, adapter), ids, scoring)

    def score_decoded(
        self, ids: array[int], token: int, temperature: float, adapter: Adapter | None = None
    ) -> float:
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
            return finite([logprob])[0]

    def sample(
        self, ids: array[int], sampling: Mapping[str, Json], adapter: Adapter | None = None
    ) -> SampledTokens:
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": sampling,
            "return_logprob": True,
            "extra_key": self._decoded,
        }
        with self._typed_errors():
            meta = self._generate(body, adapter)
            entries = meta["output_token_logprobs"]
            logprobs = finite([entry[0] for entry in entries])
            stopped = meta["finish_reason"]["type"] == Finish.STOP
            return SampledTokens(array("I", [entry[1] for entry in entries]), logprobs, stopped)

    def _generate(self, body: dict[str, Any], adapter: Adapter | None) -> dict[str, Any]:
        """Sends a request for a generation. Returns the reply's `meta_info`."""
        body |= {"lora_path": adapter.served} if adapter else {}
        response = self._engine.send("/generate", body)
        if response.status == 400:
            error = read_error(response.body)
            if adapter and ADAPTER_MISSING.match(error):
                raise self._without(adapter)
            raise ScoringRefused(error)
        if response.status != 200:
            raise self._engine.failure(response)
        meta: dict[str, Any] = json.loads(response.body)["meta_info"]
        self._check_version(meta.get("weight_version", self.version))
        return meta
