"""The control paths of vLLM servers, as read in the sources of 0.32."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.rollq.weights.fake_engines import FakeEngine

DEVELOPMENT = (
    "/server_info",
    "/weight_info",
    "/is_paused",
    "/pause",
    "/resume",
    "/collective_rpc",
    "/update_weight_version",
    "/weight_checker",
    "/reset_prefix_cache",
)


class FakeVllm(FakeEngine):
    """A server that generates nothing. Its folder is one that exists if it begins with /weights."""

    def __init__(self, *, development: bool = True, adapters: bool = True) -> None:
        super().__init__("0.32.0")
        self.development = development
        self.loads_adapters = adapters
        self.device = "cuda"
        self.head = "lm_head"
        self.lost = False
        """True once a load has failed: it has no tensors then."""
        self.cached = True
        """True if the caches hold what other weights have left."""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = urlsplit(path)
        self.query = {name: value for name, [value] in parse_qs(parts.query).items()}
        own = parts.path in self.answers or parts.path == "/v1/models"
        if own or (parts.path in DEVELOPMENT and self.development):
            return super().answer(method, parts.path, body)
        self.calls.append((parts.path, body if method == "POST" else None))
        if parts.path == "/version":
            return 200, {"version": self.sglang}
        if parts.path.endswith("_lora_adapter") and self.loads_adapters:
            return getattr(self, parts.path.removeprefix("/v1/"))(body)
        return 404, {"detail": "Not Found"}

    def server_info(self, body: Any) -> tuple[int, Any]:
        config = {
            "model_config": {"dtype": "torch.bfloat16", "quantization": None},
            "parallel_config": {"tensor_parallel_size": self.tp_size},
            "lora_config": None,
            "device_config": {"device": self.device},
        }
        return 200, {"vllm_config": config}

    def weight_info(self, body: Any) -> tuple[int, Any]:
        return 200, {"weight_version": self.version}

    def is_paused(self, body: Any) -> tuple[int, Any]:
        return 200, {"is_paused": self.paused is not None}

    def pause(self, body: Any) -> tuple[int, Any]:
        self.paused = self.query["mode"]
        self.cached = self.query.get("clear_cache") == "false"
        return 200, {"status": "paused"}

    def resume(self, body: Any) -> tuple[int, Any]:
        self.paused = None
        return 200, {"status": "resumed"}

    def collective_rpc(self, body: Any) -> tuple[int, Any]:
        assert self.paused, "requests would be running"
        assert body["method"] == "reload_weights"
        path = body["kwargs"]["weights_path"]
        if not path.startswith("/weights"):
            self.lost = True
            return 500, {"error": {"message": f"Repo id must use: {path!r}", "code": 500}}
        self.path, self.lost = path, False
        return 200, {"results": [None]}

    def weight_checker(self, body: Any) -> tuple[int, Any]:
        if self.lost:
            return 500, {"error": {"message": "Cannot copy out of meta tensor", "code": 500}}
        return 200, {"checksums": {f"dp0:tp0:{self.head}": self.contents.get(self.path, self.path)}}

    def reset_prefix_cache(self, body: Any) -> tuple[int, Any]:
        self.cached = False
        return 200, {"success": self.query["reset_running_requests"] == "true"}
