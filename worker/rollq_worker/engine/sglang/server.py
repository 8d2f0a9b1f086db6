"""SGLang's form of everything that an engine is asked. Also that of its routers, which lack much of
it.

The invariant: every question has a timeout. It knows nothing of jobs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
from collections.abc import Mapping

from rollq_worker.engine.exchange.http import EngineHttp
from rollq_worker.engine.exchange.replies import json_of, read_refusal
from rollq_worker.engine.exchange.server import PAUSED, EngineLoad, GenerationRequest, NotReady
from rollq_worker.engine.limits import ContextLimits, read_limits
from rollq_worker.engine.sglang.generate import read_reply, write_request
from rollq_worker.protocols import Generated
from rollq_worker.remote.http_client import NoResponse, Response

QUESTION_TIMEOUT_S = 10.0
SCHEDULER_TIMEOUT_S = 25.0
"""Seconds to wait for answers of SGLang's scheduler, between two of its steps. /health gives up
after 20 s.
"""
LOAD_TIMEOUT_S = 2.0
"""Seconds to wait for an engine's load. One thread asks all engines in turn."""
ABORT_TIMEOUT_S = 1.0
LOADS = "/v1/loads?include=core"
"""A router has no such path, and neither has an old SGLang."""


class SGLangServer:
    """Implements `exchange.server.Server`."""

    path = "/generate"

    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    def write_body(self, request: GenerationRequest) -> bytes:
        return write_request(request)

    def read_reply(self, body: bytes, request: GenerationRequest) -> Generated:
        return read_reply(body, request.turn, rid=request.rid, vocabulary=request.vocabulary)

    def refusal(self, response: Response, request: GenerationRequest) -> Exception:
        return read_refusal(response, request.turn.key)

    def is_other_server(self, status: int) -> bool:
        return status in (404, 405, 422, 501)  # no such path, or one with another body

    def objection(self) -> str:
        return ""

    def why_not_ready(self, *, hung: bool) -> NotReady | None:
        """One that hung, or calls itself unhealthy, must also pass a health check: until then
        /ready of 0.5.23 answers 503, although it generates again. Its scheduler is asked before,
        because a check that fails makes SGLang unhealthy. A router has none of these paths, and
        answers 503 when it has no engine.
        """
        try:
            if not hung:
                status = self._http.get("/ready", timeout_s=QUESTION_TIMEOUT_S).status
                if status < 500:
                    return None
                if not self._unhealthy():
                    return NotReady(PAUSED if status == 503 else f"/ready answers {status}")
            for path in ("/server_info", "/health"):
                status = self._http.get(path, timeout_s=SCHEDULER_TIMEOUT_S).status
                if status >= 500:
                    return NotReady(f"{path} answers {status}")
        except NoResponse as e:
            return NotReady(str(e), is_unreachable=True)
        return None

    def is_hung(self) -> bool:
        """While SGLang is paused, /ready answers 503 (0.5.15 has no /ready). The scheduler answers
        /server_info between two steps, also in a pause, unless it loads weights. /health would
        prove more, but a step of over 20 s fails it, and then SGLang takes itself for unhealthy.
        """
        try:
            ready = self._http.get("/ready", timeout_s=QUESTION_TIMEOUT_S).status
            if ready == 503 and not self._unhealthy():
                return False
            return self._http.get("/server_info", timeout_s=SCHEDULER_TIMEOUT_S).status >= 500
        except NoResponse:
            return True

    def is_paused(self) -> bool:
        """SGLang 0.5.15 and routers report none; see `load_watch.Idle`."""
        try:
            return (
                self._http.get("/ready", timeout_s=LOAD_TIMEOUT_S).status == 503
                and not self._unhealthy()
            )
        except NoResponse:
            return False

    def _unhealthy(self) -> bool:
        """True if SGLang failed its last health check. Raises NoResponse."""
        return self._http.get("/ping", timeout_s=LOAD_TIMEOUT_S).status == 503

    def abort(self, rid: str) -> bool:
        try:
            body = json.dumps({"rid": rid}).encode()
            return self._http.post("/abort_request", body, timeout_s=ABORT_TIMEOUT_S).status < 400
        except NoResponse:
            return False

    def tokenize(self, text: str) -> object:
        body = json.dumps({"prompt": text}).encode()
        response = self._http.post("/tokenize", body, timeout_s=QUESTION_TIMEOUT_S)
        return json_of("/tokenize", response)

    def load(self) -> EngineLoad | None:
        return _read_load(json_of(LOADS, self._http.get(LOADS, timeout_s=LOAD_TIMEOUT_S)))

    def limits(self) -> ContextLimits:
        return read_limits(self._get_json)

    def model(self) -> str | None:
        return self._model_info("model_path")

    def weight_version(self) -> str | None:
        return self._model_info("weight_version")

    def _model_info(self, field: str) -> str | None:
        info = self._get_json("/model_info")
        value = info.get(field) if isinstance(info, dict) else None
        return value if isinstance(value, str) else None

    def _get_json(self, path: str) -> object:
        return json_of(path, self._http.get(path, timeout_s=QUESTION_TIMEOUT_S))


def _read_load(reply: object) -> EngineLoad | None:
    """The load in the JSON of the reply; None for one that cannot be read."""
    ranks = reply.get("loads") if isinstance(reply, Mapping) else None
    if not isinstance(ranks, list) or not ranks:
        return None
    try:
        load = EngineLoad(
            running=sum(int(rank["num_running_reqs"]) for rank in ranks),
            waiting=sum(int(rank["num_waiting_reqs"]) for rank in ranks),
            token_usage=max(float(rank["token_usage"]) for rank in ranks),
            used_tokens=sum(int(rank.get("num_used_tokens", 0)) for rank in ranks),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return load if 0 <= load.token_usage < math.inf else None  # also NaN, which no limit is below
