"""The control paths of SGLang servers, as read in the sources of 0.5.15.post1 and 0.5.23, and of
smg 1.13.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rollq.errors import SyncError
from rollq.weights import Fleet

OLD, NEW = "0.5.15.post1", "0.5.23"
WEIGHTS = "/weights/7"
HANG = (0, None)
"""An answer that does not come before the end of the test."""


class FakeEngine:
    """A server that generates nothing. `answers` are status and body by path, in place
    of its own.
    """

    def __init__(self, sglang: str = NEW) -> None:
        self.sglang = sglang
        self.version, self.path = "0", "/weights/0"
        self.paused: str | None = None
        """The mode of the pause."""
        self.waiting = 0
        """Requests that a retracting pause has put back."""
        self.flush_needs_empty_queue = sglang == OLD
        self.contents: dict[str, str] = {}
        """What the folders hold, where that is not told by their path."""
        self.tp_size = 1
        self.adapters: dict[str, str] = {}
        """Folders of LoRA adapters, by name."""
        self.answers: dict[str, tuple[int, Any]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.keys: set[str | None] = set()
        self.over = threading.Event()
        self.url = ""

    @property
    def posts(self) -> list[str]:
        return [path for path, body in self.calls if body is not None]

    def body(self, path: str) -> Any:
        """Of the last call to that path."""
        return [body for called, body in self.calls if called == path][-1]

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.calls.append((path, body if method == "POST" else None))
        if path in self.answers:
            if self.answers[path] is HANG:
                self.over.wait(60)
            return self.answers[path]
        if path == "/v1/models":
            return self.models()
        own = getattr(type(self), path.removeprefix("/"), None)
        return own(self, body) if own and path.count("/") == 1 else (404, {"detail": "Not Found"})

    def server_info(self, body: Any) -> tuple[int, Any]:
        return 200, {"version": self.sglang, "tp_size": self.tp_size}

    def model_info(self, body: Any) -> tuple[int, Any]:
        return 200, {"model_path": self.path, "weight_version": self.version}

    def ready(self, body: Any) -> tuple[int, Any]:
        return (
            (404, {"detail": "Not Found"})
            if self.sglang == OLD
            else (503 if self.paused else 200, "")
        )

    def pause_generation(self, body: Any) -> tuple[int, Any]:
        self.paused = body["mode"]
        if self.paused == "abort":
            self.waiting = 0
        return 200, {"message": "Generation paused successfully.", "status": "ok"}

    def continue_generation(self, body: Any) -> tuple[int, Any]:
        self.paused = None
        return 200, {"message": "Generation continued successfully.", "status": "ok"}

    def update_weights_from_disk(self, body: Any) -> tuple[int, Any]:
        assert self.paused, "requests would be running"
        self.version, self.path = body["weight_version"], body["model_path"]
        return 200, {
            "success": True,
            "message": "Succeeded to update model weights.",
            "num_paused_requests": 0,
        }

    def update_weight_version(self, body: Any) -> tuple[int, Any]:
        self.version = body["new_version"]
        return 200, {
            "success": True,
            "message": "Weight version updated",
            "new_version": self.version,
        }

    def flush_cache(self, body: Any) -> tuple[int, Any]:
        refused = self.paused == "in_place" or (self.waiting and self.flush_needs_empty_queue)
        return (400, "Flush cache failed.\n") if refused else (200, "Cache flushed.\n")

    def load_lora_adapter(self, body: Any) -> tuple[int, Any]:
        name = body["lora_name"]
        if name in self.adapters:
            return self._adapters(
                400, f"Failed to load LoRA adapter {name} because it is already loaded"
            )
        self.adapters[name] = body["lora_path"]
        return self._adapters(200)

    def unload_lora_adapter(self, body: Any) -> tuple[int, Any]:
        del self.adapters[body["lora_name"]]
        return self._adapters(200)

    def _adapters(self, status: int, error: str = "") -> tuple[int, Any]:
        return status, {
            "success": status == 200,
            "error_message": error,
            "loaded_adapters": self.adapters,
        }

    def models(self) -> tuple[int, Any]:
        found = [
            (self.path, self.path, None),
            *((*each, self.path) for each in self.adapters.items()),
        ]
        return 200, {
            "data": [{"id": name, "root": root, "parent": parent} for name, root, parent in found]
        }

    def weights_checker(self, body: Any) -> tuple[int, Any]:
        held = self.contents.get(self.path, self.path)
        checksum = hashlib.sha256(held.encode()).hexdigest()
        return 200, {
            "success": True,
            "message": "Success.",
            "ranks": [],
            "per_engine_checksum": checksum,
        }


class FakeSmg(FakeEngine):
    """A router with `--enable-rl` and these workers."""

    def __init__(self, *workers: FakeEngine) -> None:
        super().__init__("smg")
        self.workers = {f"id-{number}": worker for number, worker in enumerate(workers)}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/rl/workers":
            found = [{"id": name, "url": worker.url} for name, worker in self.workers.items()]
            return 200, {"protocol_version": 1, "workers": found, "total": len(found)}
        name, engine, inner = path.removeprefix("/v1/rl/workers/").partition("/engine")
        if not engine:
            return 404, ""
        status, reply = self.workers[name].answer(method, inner, body)
        return status, {
            "worker_id": name,
            "url": self.workers[name].url,
            "status": status,
            "body": reply,
        }


def _handler(engine: FakeEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            engine.keys.add(self.headers.get("Authorization"))
            status, body = engine.answer(self.command, self.path, json.loads(raw or b"{}"))
            if status == 0:
                return self.connection.close()
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serving(*engines: FakeEngine) -> Iterator[list[str]]:
    """The engines' addresses."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(engine)) for engine in engines]
    for engine, server in zip(engines, servers, strict=True):
        server.daemon_threads = True
        server.handle_error = lambda *args: None  # type: ignore[method-assign]  # clients hang up in these tests
        engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield [engine.url for engine in engines]
    finally:
        for engine, server, thread in zip(engines, servers, threads, strict=True):
            engine.over.set()
            server.shutdown()
            thread.join()
            server.server_close()


def failing(fleet: Fleet, path: str = WEIGHTS, version: str = "7") -> SyncError:
    """The error of an update that fails."""
    with pytest.raises(SyncError) as caught:
        fleet.update(path, version)
    return caught.value
