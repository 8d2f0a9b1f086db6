"""Engines for tests: an HTTP server that gives scripted answers, and the replay engine in a thread."""

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rollq_worker.replay_engine.generate import ReplayOptions
from rollq_worker.replay_engine.server import run

Answer = tuple[int, Any] | str | Callable[[dict[str, Any]], Any]
"""Status and body; `reset`; `hang`; or a function from the request's body to the body of a 200."""


def good_reply(body: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """A reply of three tokens, the last of which ends the turn."""
    return reply([7, 8, 9], prompt_tokens=len(body["input_ids"]), id=body["rid"], **meta)


def reply(ids: list[int], **meta: Any) -> dict[str, Any]:
    entries = [[-0.5 - i, token, None] for i, token in enumerate(ids)]
    return {
        "text": "said",
        "output_ids": ids,
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 9},
            "completion_tokens": len(ids),
            "cached_tokens": 1,
            "weight_version": "v1",
            "output_token_logprobs": entries,
            "weight_versions": [{"version": "v1", "start": 0, "end": len(ids)}],
            **meta,
        },
    }


@dataclass
class ScriptedEngine:
    """Answers /generate by `answers` in turn, then by `then`; other paths by `paths`, else 404."""

    answers: list[Answer] = field(default_factory=list)
    paths: dict[str, Answer] = field(default_factory=dict)
    then: Answer = good_reply
    port: int = 0
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Path, body and headers of each."""
    closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, path: str = "/generate") -> list[dict[str, Any]]:
        return [body for at, body, _ in self.requests if at == path]

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        if path != "/generate":
            return self.paths.get(path, (404, {"detail": "Not Found"}))
        with self._lock:
            return self.answers.pop(0) if self.answers else self.then


def _handler(script: ScriptedEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            script.requests.append((self.path, body, dict(self.headers)))
            self.play("reset" if script.closed else script.answer(self.path, body), body)

        do_GET = do_POST

        def play(self, answer: Answer, body: dict[str, Any]) -> None:
            if answer == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
            elif answer == "hang":
                time.sleep(1.0)
                self.close_connection = True
            else:
                status, content = (200, answer(body)) if callable(answer) else answer
                self.send(status, content if isinstance(content, bytes) else json.dumps(content).encode())

        def send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

        def finish(self) -> None:
            with suppress(OSError):  # it was reset
                super().finish()

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextmanager
def scripted_engine(*answers: Answer, port: int = 0, **paths: Answer) -> Iterator[ScriptedEngine]:
    """`paths` are answers by path, without the slash."""
    script = ScriptedEngine(list(answers), {"/" + name: answer for name, answer in paths.items()})
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(script))
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # type: ignore[method-assign]  # clients hang up in these tests
    script.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield script
    finally:
        script.closed = True  # connections outlive the server
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def replaying(**options: Any) -> Iterator[str]:
    """The address of a replay engine in a thread."""
    loop = asyncio.new_event_loop()
    until, ready, address = asyncio.Event(), threading.Event(), []

    def announce(url: str) -> None:
        address.append(url)
        ready.set()

    chosen = ReplayOptions(**{"port": 0, **options})
    thread = threading.Thread(target=lambda: loop.run_until_complete(run(chosen, until, announce)))
    thread.start()
    try:
        assert ready.wait(120), "the replay engine did not start"
        yield address[0]
    finally:
        loop.call_soon_threadsafe(until.set)
        thread.join()
        loop.close()
