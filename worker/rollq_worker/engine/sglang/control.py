"""Everything that an engine is asked except to generate: whether it is ready, whether it hangs, to
abort a request.

The invariant: every question has a timeout. It knows nothing of jobs.
"""

import json

from rollq_worker.engine.http import EngineHttp
from rollq_worker.engine.load import PATH as LOADS
from rollq_worker.engine.load import EngineLoad, read_load
from rollq_worker.remote.http_client import NoResponse, Response

QUESTION_TIMEOUT_S = 10.0
SCHEDULER_TIMEOUT_S = 25.0
"""Seconds to wait for answers of SGLang's scheduler, between two of its steps. /health gives up
after 20 s.
"""
LOAD_TIMEOUT_S = 2.0
"""Seconds to wait for an engine's load. One thread asks all engines in turn."""
ABORT_TIMEOUT_S = 1.0


PAUSED = "/ready answers 503: it is paused"
"""Why a paused engine takes no requests."""


class EngineControl:
    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    def why_not_ready(self, *, hung: bool) -> tuple[str, bool]:
        """Why the engine takes no requests, and whether it is unreachable; ("", False) when it
        takes them.

        One that hung, or calls itself unhealthy, must also pass SGLang's health check: until then
        /ready of 0.5.23 answers 503, although it generates again. Its scheduler is asked before,
        because a check that fails makes SGLang unhealthy. A router has none of these paths, and
        answers 503 when it has no engine.
        """
        try:
            if not hung:
                status = self._http.get("/ready", timeout_s=QUESTION_TIMEOUT_S).status
                if status < 500:
                    return "", False
                if not self._unhealthy():
                    return PAUSED if status == 503 else f"/ready answers {status}", False
            for path in ("/server_info", "/health"):
                status = self._http.get(path, timeout_s=SCHEDULER_TIMEOUT_S).status
                if status >= 500:
                    return f"{path} answers {status}", False
        except NoResponse as e:
            return str(e), True
        return "", False

    def hangs(self) -> bool:
        """True if the engine's scheduler answers nothing although it is not paused.

        While SGLang is paused, /ready answers 503 (0.5.15 has no /ready). The scheduler answers
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

    def paused(self) -> bool:
        """True if the engine reports a pause. SGLang 0.5.15 and routers do not; see
        `load_watch.Idle`.
        """
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
        """Have the engine end this request with the tokens so far. False when it could not be
        asked.
        """
        try:
            body = json.dumps({"rid": rid}).encode()
            return self._http.post("/abort_request", body, timeout_s=ABORT_TIMEOUT_S).status < 400
        except NoResponse:
            return False

    def tokenize(self, text: str) -> object:
        """The reply of /tokenize; None if the server has no such path. Raises NoResponse while the
        engine is away.
        """
        body = json.dumps({"prompt": text}).encode()
        return _json("/tokenize", self._http.post("/tokenize", body, timeout_s=QUESTION_TIMEOUT_S))

    def load(self) -> EngineLoad | None:
        """The engine's load; None if it does not report one. Raises NoResponse while it is away."""
        return read_load(_json(LOADS, self._http.get(LOADS, timeout_s=LOAD_TIMEOUT_S)))

    def get_json(self, path: str) -> object:
        """The JSON at the path; None if the server does not have it. Raises NoResponse while the
        engine is away.
        """
        return _json(path, self._http.get(path, timeout_s=QUESTION_TIMEOUT_S))


def _json(path: str, response: Response) -> object:
    if response.status >= 500:
        raise NoResponse(f"{path} answers {response.status}")
    return response.json() if response.status == 200 else None
