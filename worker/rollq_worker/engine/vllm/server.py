"""vLLM's form of everything that an engine is asked (0.32, `vllm/entrypoints`).

What only a server in development mode (VLLM_SERVER_DEV_MODE=1) answers is not known without it.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
import re
import time
from typing import Any

from rollq.errors import JobFailure
from rollq_worker.engine.exchange.http import EngineHttp
from rollq_worker.engine.exchange.replies import (
    AdapterMissing,
    EngineUnavailable,
    json_of,
    read_error,
    read_refusal,
)
from rollq_worker.engine.exchange.server import PAUSED, EngineLoad, GenerationRequest, NotReady
from rollq_worker.engine.limits import (
    IDLE_S,
    ContextLimits,
    first_model,
    object_or_empty,
    positive_number,
)
from rollq_worker.engine.vllm.generate import read_reply, write_request
from rollq_worker.protocols import Generated
from rollq_worker.remote.http_client import NoResponse, Response

QUESTION_TIMEOUT_S = 10.0
SCHEDULER_TIMEOUT_S = 25.0
"""Seconds to wait for answers of the engine's core, between two of its steps."""
LOAD_TIMEOUT_S = 2.0
ABORT_TIMEOUT_S = 1.0
PROOF_TIMEOUT_S = 60.0
START = "start vLLM with"
REMEDIES = {
    401: "it wants an API key, and workers send none: start it without --api-key",
    403: f"it gives no tokens: {START} --enable-scale-out",
    404: "it has no /inference/v1/generate: rollq needs vLLM 0.32 or newer",
}
"""The meaning of a status that blames no request, with its remedy."""
RAW = (
    "its logprobs are those before temperature and top_p: "
    f"{START} --logprobs-mode processed_logprobs"
)
TOKENS_ONLY = (
    "without a tokenizer it has no stop texts and no grammars, and cannot show its vocabulary: "
    f"{START}out --tokens-only and --skip-tokenizer-init"
)
SPECULATIVE = (
    "its logprobs are wrong, and it refuses min_p and logit_bias, under speculative decoding: "
    f"{START}out --speculative-config"
)
WATERMARK = f"it samples with a watermark, which its logprobs leave out: {START}out it"
METRIC = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{[^}]*\} (\S+)$", re.M
)
"""Lines of /metrics, one for each engine core."""


class VllmServer:
    """Implements `exchange.server.Server`."""

    path = "/inference/v1/generate"

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._suits = False
        """True once nothing spoke against its tokens."""
        self._used_at = 0.0

    def write_body(self, request: GenerationRequest) -> bytes:
        turn = request.turn
        if turn.routing is not None:
            raise JobFailure(f"{turn.key}: routed experts are read from SGLang only")
        if "stop_regex" in turn.sampling:
            raise JobFailure(f"{turn.key}: stop_regex is SGLang's alone, and the engine is vLLM")
        return write_request(request)

    def read_reply(self, body: bytes, request: GenerationRequest) -> Generated:
        return read_reply(body, request.turn, rid=request.rid, vocabulary=request.vocabulary)

    def refusal(self, response: Response, request: GenerationRequest) -> Exception:
        status = response.status
        error = read_error(response.body)
        if status == 404 and request.adapter is not None and "does not exist" in error:
            return AdapterMissing(f"the engine answered 404: {error}")
        if status in REMEDIES:
            return EngineUnavailable(REMEDIES[status], foreign=True)
        return read_refusal(response, request.turn.key)

    def is_other_server(self, status: int) -> bool:
        return False  # it has said that it is vLLM

    def why_not_ready(self, *, hung: bool) -> NotReady | None:
        """/health shows that the core lives; in development mode /is_paused has to come from it."""
        try:
            status = self._http.get("/health", timeout_s=SCHEDULER_TIMEOUT_S).status
            if status >= 500:
                return NotReady(f"/health answers {status}")
            if self._reports_pause(SCHEDULER_TIMEOUT_S):
                return NotReady(PAUSED)
        except NoResponse as e:
            return NotReady(str(e), is_unreachable=True)
        return None

    def objection(self) -> str:
        """Trainers need `processed_logprobs`. It is asked until it has them, and again after a time
        in which nothing was sent there.
        """
        now = time.monotonic()
        was_idle = now - self._used_at > IDLE_S
        self._used_at = now
        if self._suits and not was_idle:
            return ""
        try:
            objection = self._find_objection()
        except NoResponse as e:
            return "" if self._suits else f"it is not known which logprobs it gives: {e}"
        self._suits = not objection
        return objection

    def _find_objection(self) -> str:
        # the first answer takes seconds
        info = object_or_empty(self._get_json("/server_info?config_format=json", PROOF_TIMEOUT_S))
        config = info.get("vllm_config")
        if not isinstance(config, dict):
            return "" if self._logprobs_follow_sampling() else RAW
        model = object_or_empty(config.get("model_config"))
        if model.get("logprobs_mode") != "processed_logprobs":
            return RAW
        if model.get("skip_tokenizer_init"):
            return TOKENS_ONLY
        if config.get("speculative_config"):
            return SPECULATIVE
        return WATERMARK if config.get("watermark_config") else ""

    def _logprobs_follow_sampling(self) -> bool:
        """True if a token that had no rival after `top_k` has the logprob 0. Raises NoResponse."""
        # a server that decodes speculatively refuses min_p, and one without a tokenizer stop texts;
        # both name their reason
        params = {"max_tokens": 1, "logprobs": 0, "top_k": 1, "min_p": 0.01, "stop": ["never"]}
        body = json.dumps({"token_ids": [1], "sampling_params": params}).encode()
        response = self._http.post(self.path, body, timeout_s=PROOF_TIMEOUT_S)
        if response.status in REMEDIES:
            raise NoResponse(REMEDIES[response.status])
        reply = json_of(self.path, response)
        try:
            [entry] = reply["choices"][0]["logprobs"]["content"]  # type: ignore[index]
            return bool(entry["logprob"] == 0.0)
        except (TypeError, LookupError, ValueError) as e:
            raise NoResponse(f"{self.path} gives no logprobs: {read_error(response.body)}") from e

    def is_hung(self) -> bool:
        """Only a server in development mode can be asked: /health answers while its core hangs."""
        try:
            self._reports_pause(SCHEDULER_TIMEOUT_S)
        except NoResponse:
            return True
        return False

    def is_paused(self) -> bool:
        try:
            return self._reports_pause(LOAD_TIMEOUT_S)
        except NoResponse:
            return False

    def _reports_pause(self, timeout_s: float) -> bool:
        reply = json_of("/is_paused", self._http.get("/is_paused", timeout_s=timeout_s))
        return object_or_empty(reply).get("is_paused") is True

    def abort(self, rid: str) -> bool:
        body = json.dumps({"request_ids": [f"generate-tokens-{rid}"]}).encode()
        try:
            path = "/inference/v1/abort_requests"
            return self._http.post(path, body, timeout_s=ABORT_TIMEOUT_S).status < 400
        except NoResponse:
            return False

    def tokenize(self, text: str) -> object:
        body = json.dumps({"prompt": text}).encode()
        response = self._http.post("/tokenize", body, timeout_s=QUESTION_TIMEOUT_S)
        return json_of("/tokenize", response)

    def load(self) -> EngineLoad | None:
        response = self._http.get("/metrics", timeout_s=LOAD_TIMEOUT_S)
        if response.status != 200:
            return None
        values: dict[str, list[float]] = {}
        try:
            for name, text in METRIC.findall(response.body.decode("utf-8", "replace")):
                value = float(text)
                if not math.isfinite(value):
                    return None
                values.setdefault(name, []).append(value)
            return EngineLoad(
                running=int(sum(values["num_requests_running"])),
                waiting=int(sum(values["num_requests_waiting"])),
                token_usage=max(values["kv_cache_usage_perc"]),
            )
        except (KeyError, ValueError):  # a gauge is missing, or is not a number
            return None

    def model(self) -> str | None:
        root = first_model(self._get_json).get("root")
        return root if isinstance(root, str) else None

    def limits(self) -> ContextLimits:
        length = positive_number(first_model(self._get_json).get("max_model_len"))
        if length is None:
            return ContextLimits()
        return ContextLimits(context=length, prompt=length, reported=True)

    def weight_version(self) -> str | None:
        version = object_or_empty(self._get_json("/weight_info")).get("weight_version")
        return version if isinstance(version, str) else None

    def _get_json(self, path: str, timeout_s: float = QUESTION_TIMEOUT_S) -> Any:
        return json_of(path, self._http.get(path, timeout_s=timeout_s))
