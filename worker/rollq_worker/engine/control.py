"""What an engine is asked and told beside generating: whether it is ready, whether it lives, to abort a request.

The invariant: every question has its time, and silence is an answer. It knows nothing of jobs.
"""

import json

from rollq_worker.engine.http import Line, NoAnswer

PROBE_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 25.0
"""A server that is asked for its health generates a token, and gives up after 20 s."""
ABORT_TIMEOUT_S = 1.0


class EngineControl:
    """Questions and orders to one engine."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def trouble(self, *, generating: bool) -> tuple[str, bool]:
        """Why it takes no requests, and whether nobody is there at all; ("", False) when it takes them.

        `generating`: its word is not enough, it must generate a token. A router has neither path: it answers, and says
        503 itself when it has no engine.
        """
        path, timeout_s = ("/health", HEALTH_TIMEOUT_S) if generating else ("/ready", PROBE_TIMEOUT_S)
        try:
            status = self._line.get(path, timeout_s=timeout_s).status
        except NoAnswer as e:
            return str(e), True
        return (f"{path} answers {status}", False) if status >= 500 else ("", False)

    def generates(self) -> bool:
        """Whether it gets anywhere; one that is paused or starting does as it should."""
        try:
            if self._line.get("/ready", timeout_s=PROBE_TIMEOUT_S).status == 503:
                return True
            return self._line.get("/health", timeout_s=HEALTH_TIMEOUT_S).status < 500
        except NoAnswer:
            return False

    def abort(self, rid: str) -> bool:
        """Have it end this request now with what it has. False when it could not be told."""
        try:
            body = json.dumps({"rid": rid}).encode()
            return self._line.post("/abort_request", body, timeout_s=ABORT_TIMEOUT_S).status < 400
        except NoAnswer:
            return False

    def tokens(self, text: str) -> object:
        """What /tokenize answers, None where there is none. Raises NoAnswer while the engine is away."""
        answer = self._line.post("/tokenize", json.dumps({"prompt": text}).encode(), timeout_s=PROBE_TIMEOUT_S)
        if answer.status >= 500:
            raise NoAnswer(f"/tokenize answers {answer.status}")
        return answer.json() if answer.status == 200 else None

    def json(self, path: str) -> object:
        """The JSON there, None where there is none. Raises NoAnswer while the engine is away."""
        answer = self._line.get(path, timeout_s=PROBE_TIMEOUT_S)
        if answer.status >= 500:
            raise NoAnswer(f"{path} answers {answer.status}")
        return answer.json() if answer.status == 200 else None
