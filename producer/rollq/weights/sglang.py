"""The control side of one SGLang server. Paths and shapes are those of 0.5.15 and 0.5.23
(`srt/entrypoints/http_server.py`); 0.5.15 lacks `/ready` and versions per token.
"""

import time

from rollq.weights.engine_control import (
    CONTROL_TIMEOUT_S,
    NOT_FOUND,
    ControlFailure,
    PauseMode,
    Serving,
    UpdatingEngine,
)

FLUSH_TRIES, FLUSH_PAUSE_S = 20, 0.5
"""An engine whose requests were just aborted is idle a moment later."""
REFUSED = 400
SHAPE = ("version", "tp_size", "dp_size", "pp_size", "ep_size", "dtype", "quantization")
"""Fields of /server_info that engines must share to hold the same tensors."""


class SGLangEngine(UpdatingEngine):
    resume_path = "/continue_generation"
    adapter_path = ""

    def _describe(self) -> None:
        info = self._connection.call("GET", "/server_info")
        fields = info.body if info.ok and isinstance(info.body, dict) else {}
        self.server = str(fields.get("version", ""))
        self.shape = tuple(str(fields.get(name)) for name in SHAPE)

    def serving(self, timeout_s: float = CONTROL_TIMEOUT_S) -> Serving:
        info = self._get("/model_info", timeout_s)
        try:
            version, path = info["weight_version"], info["model_path"]
        except (TypeError, KeyError):
            raise ControlFailure(
                "/model_info does not name the weight version: is this an SGLang server?"
            ) from None
        ready = self._connection.call("GET", "/ready", timeout_s=timeout_s)
        is_paused = None if ready.status == NOT_FOUND else not ready.ok
        return Serving(str(version), str(path).rstrip("/"), is_paused)

    def _pause(self, serving: Serving) -> None:
        """A server without `/ready` has no versions per token, so its requests are aborted: no
        reply then holds tokens of two versions. (`/ready` came with 0.5.20, versions per token with
        0.5.19.)
        """
        if serving.paused is None:
            self._mode = PauseMode.ABORT
        self._do("/pause_generation", {"mode": self._mode})

    def load(self, path: str, version: str, timeout_s: float) -> None:
        """The version is in the same call. The cache is flushed in a call of its own, because a
        flush that is refused makes this call fail (0.5.23, where /model_info then names the old
        version) or ends the server (0.5.15) although the weights are in use.
        """
        self.begin("update")
        body = {
            "model_path": path,
            "weight_version": version,
            "flush_cache": False,
            "abort_all_requests": False,
        }
        self._do("/update_weights_from_disk", body, timeout_s)

    def checksum(self, timeout_s: float) -> str | None:
        answer = self._connection.call(
            "POST", "/weights_checker", {"action": "checksum"}, timeout_s
        )
        if not answer.ok or not isinstance(answer.body, dict):
            return None
        checksum: str | None = answer.body.get("per_engine_checksum")
        return checksum

    def _flush(self) -> None:
        # Retracted requests wait, and some servers flush only when none does (0.5.20): those are
        # aborted.
        if self._mode is PauseMode.RETRACT and self._connection.call("POST", "/flush_cache").ok:
            return
        self._do("/pause_generation", {"mode": PauseMode.ABORT})
        for _ in range(FLUSH_TRIES):
            answer = self._connection.call("POST", "/flush_cache")
            if answer.ok:
                return
            if answer.status != REFUSED:
                break
            time.sleep(FLUSH_PAUSE_S)
        raise ControlFailure(answer.refusal())
