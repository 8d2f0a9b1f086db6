"""The control side of one vLLM server, 0.32 (`vllm/entrypoints`)."""

import hashlib
import json
from typing import Any

from rollq.weights.engine_control import (
    CONTROL_TIMEOUT_S,
    Answer,
    ControlFailure,
    PauseMode,
    Serving,
    UpdatingEngine,
)

DEVELOPMENT = "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment: it has no {path} without"
ADAPTERS = (
    "start vLLM with --enable-lora, and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
)
TIED = (
    "vLLM 0.32 on a CPU keeps its old output head when this is tied to the embeddings: start it "
    "again on the new folder, or train a model with tie_word_embeddings=False"
)
MODEL_SHAPE = ("dtype", "quantization")
PARALLEL_SHAPE = ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
"""Fields of /server_info that engines must share to hold the same tensors."""
PAUSES = {
    PauseMode.RETRACT: "mode=keep",
    PauseMode.IN_PLACE: "mode=keep&clear_cache=false",
    PauseMode.ABORT: "mode=abort",
}


class VllmEngine(UpdatingEngine):
    resume_path = "/resume"
    adapter_path = "/v1"

    def _refusal(self, path: str, answer: Answer) -> str:
        if answer.body == {"detail": "Not Found"}:
            return ADAPTERS if path.startswith("/v1") else DEVELOPMENT.format(path=path)
        return answer.refusal()

    def _describe(self) -> None:
        self.server = f"vLLM {self._get('/version')['version']}"
        info = self._connection.call("GET", "/server_info?config_format=json")
        config = info.body["vllm_config"] if info.ok else {}
        model, parallel = config.get("model_config", {}), config.get("parallel_config", {})
        fields = [model.get(name) for name in MODEL_SHAPE]
        fields += [parallel.get(name) for name in PARALLEL_SHAPE]
        fields.append(bool(config.get("lora_config")))  # its tensors have other names
        self.shape = (self.server, *map(str, fields))
        self._on_cpu = config.get("device_config", {}).get("device") == "cpu"

    def serving(self, timeout_s: float = CONTROL_TIMEOUT_S) -> Serving:
        info = self._get("/weight_info", timeout_s)
        state = self._get("/is_paused", timeout_s)
        return Serving(str(info["weight_version"]), None, bool(state["is_paused"]))

    def _pause(self, serving: Serving) -> None:
        if self._on_cpu and self._head_is_tied():
            raise ControlFailure(TIED)
        self._do(f"/pause?{PAUSES[self._mode]}", {})

    def _head_is_tied(self) -> bool:
        """True if it has no tensor of its own. One whose last load failed has no checksums, and was
        asked before that load.
        """
        try:
            checksums = self._do("/weight_checker", {"action": "checksum"})["checksums"]
        except ControlFailure:
            return False
        return not any("lm_head" in name for name in checksums)

    def load(self, path: str, version: str, timeout_s: float) -> None:
        """The version follows the weights, within the pause."""
        self.begin("update")
        body: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._do("/collective_rpc", body, timeout_s)
        self.name_version(version)

    def checksum(self, timeout_s: float) -> str | None:
        """On a CPU, vLLM leaves out the matrices that it has packed (0.32)."""
        answer = self._connection.call("POST", "/weight_checker", {"action": "checksum"}, timeout_s)
        if not answer.ok or not isinstance(answer.body, dict):
            return None
        by_tensor = json.dumps(answer.body["checksums"], sort_keys=True)
        return hashlib.sha256(by_tensor.encode()).hexdigest()

    def _flush(self) -> None:
        """Again: a pause in mode `keep` has done it in 0.32, but is documented not to."""
        query = "reset_running_requests=true&reset_external=true"
        if not self._do(f"/reset_prefix_cache?{query}", {})["success"]:
            raise ControlFailure("vLLM did not empty its prefix cache")
