"""The control side of one vLLM server, 0.32 (`vllm/entrypoints`)."""

import hashlib
import json
from typing import Any, NoReturn

from rollq.weights.engine_control import (
    CONTROL_TIMEOUT_S,
    Answer,
    ControlFailure,
    PauseMode,
    Serving,
    UpdatingEngine,
)

NEEDS_DEV_MODE = (
    "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment: it has no {path} otherwise"
)
NEEDS_LORA = (
    "start vLLM with --enable-lora, and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
)
TIED_HEAD_ON_CPU = (
    "vLLM 0.32 on a CPU keeps its old output head when this is tied to the embeddings: start it "
    "again on the new folder, or train a model with tie_word_embeddings=False"
)
# Fields of /server_info that must be equal for engines to hold the same tensors.
MODEL_SHAPE = ("dtype", "quantization")
PARALLEL_SHAPE = ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
PAUSES = {
    PauseMode.RETRACT: "mode=keep",
    PauseMode.IN_PLACE: "mode=keep&clear_cache=false",
    PauseMode.ABORT: "mode=abort",
}


class _Fields(dict[str, Any]):
    """The fields of a reply. Raises ControlFailure for one that it lacks."""

    def __init__(self, path: str, body: Any) -> None:
        super().__init__(body if isinstance(body, dict) else {})
        self._path = path.partition("?")[0]

    def __missing__(self, name: str) -> NoReturn:
        raise ControlFailure(f"{self._path} does not name {name}: is this vLLM 0.32 or newer?")


class VllmEngine(UpdatingEngine):
    resume_path = "/resume"
    adapter_path = "/v1"
    _on_cpu = False

    def _refusal(self, path: str, answer: Answer) -> str:
        if answer.body == {"detail": "Not Found"}:
            is_adapter_path = path.startswith(self.adapter_path)
            return NEEDS_LORA if is_adapter_path else NEEDS_DEV_MODE.format(path=path)
        return answer.refusal()

    def _body(self, path: str, answer: Answer) -> Any:
        return _Fields(path, super()._body(path, answer))

    def _describe(self) -> None:
        self.server = f"vLLM {self._get('/version')['version']}"
        info = self._connection.call("GET", "/server_info?config_format=json")
        config = _Fields("/server_info", info.body)["vllm_config"] if info.ok else {}
        model = config.get("model_config", {})
        parallel = config.get("parallel_config", {})
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
            raise ControlFailure(TIED_HEAD_ON_CPU)
        self._do(f"/pause?{PAUSES[self._mode]}", {})

    def _head_is_tied(self) -> bool:
        """True if the output head is the embedding matrix. False where the engine reports no
        checksums, as it does after a load that failed: it was asked before that load.
        """
        try:
            checksums = self._do("/weight_checker", {"action": "checksum"})["checksums"]
        except ControlFailure:
            return False
        return not any("lm_head" in name for name in checksums)

    def load(self, path: str, version: str, timeout_s: float) -> None:
        """Loads the weights, then names their version; both within the pause."""
        self.begin("update")
        body: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._do("/collective_rpc", body, timeout_s)
        self.name_version(version)

    def checksum(self, timeout_s: float) -> str | None:
        """A digest of the tensors' checksums. On a CPU, vLLM 0.32 leaves out the matrices that it
        has packed.
        """
        answer = self._connection.call("POST", "/weight_checker", {"action": "checksum"}, timeout_s)
        if not answer.ok or not isinstance(answer.body, dict):
            return None
        checksums = _Fields("/weight_checker", answer.body)["checksums"]
        by_tensor = json.dumps(checksums, sort_keys=True)
        return hashlib.sha256(by_tensor.encode()).hexdigest()

    def _flush(self) -> None:
        """Empties the prefix cache. In 0.32 a pause with mode=keep has done so already, although
        its documentation says otherwise.
        """
        query = "reset_running_requests=true&reset_external=true"
        if not self._do(f"/reset_prefix_cache?{query}", {})["success"]:
            raise ControlFailure("vLLM did not empty its prefix cache")
