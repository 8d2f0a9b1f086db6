"""Engines for tests: an HTTP server that gives scripted answers, and the replay engine
in a thread.
"""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rollq_worker.replay_engine.generate import ReplayOptions
from rollq_worker.replay_engine.server import ReplayServer, run

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | str | Callable[[dict[str, Any]], Any]
"""Status, body and headers; `reset`; `hang`; or a function of the request's body that gives an
answer or a 200's body.

A body is bytes, JSON, or a function that gives it in pieces.
"""
GENERATING = ("/generate", "/v1/chat/completions", "/inference/v1/generate")


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
    """Answers GENERATING paths by `answers` in turn, then by `then`; other paths by `paths`, else
    404.
    """

    answers: list[Answer] = field(default_factory=list)
    paths: dict[str, Answer] = field(default_factory=dict)
    then: Answer = good_reply
    port: int = 0
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Path, body and headers of each."""
    closed: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    connections: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, path: str = "/generate") -> list[dict[str, Any]]:
        return [body for at, body, _ in self.requests if at == path]

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        if path not in GENERATING:
            return self.paths.get(path, (404, {"detail": "Not Found"}))
        with self._lock:
            return self.answers.pop(0) if self.answers else self.then


def _handler(script: ScriptedEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def setup(self) -> None:
            super().setup()
            script.connections.add(self.connection)

        def do_POST(self) -> None:
            body = json.loads(
                self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"
            )
            script.requests.append((self.path, body, dict(self.headers)))
            self.play("reset" if script.closed else script.answer(self.path, body), body)

        do_GET = do_POST

        def play(self, answer: Answer, body: dict[str, Any]) -> None:
            if callable(answer):
                result = answer(body)
                answer = result if isinstance(result, tuple | str) else (200, result)
            if answer == "reset":
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()
                self.close_connection = True
            elif answer == "hang":
                script.over.wait(60)
                self.close_connection = True
            else:
                self.send(*answer)

        def send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
            pieces = content() if callable(content) else [_encoded(content)]
            length = {} if callable(content) else {"Content-Length": str(len(pieces[0]))}
            self.send_response(status)
            for name, value in {**length, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

        def finish(self) -> None:
            script.connections.discard(self.connection)
            with suppress(OSError):  # it was reset
                super().finish()

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def _encoded(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


@contextmanager
def scripted_engine(
    *answers: Answer, then: Answer = good_reply, port: int = 0, **paths: Answer
) -> Iterator[ScriptedEngine]:
    """`paths` are answers by path, without the slash."""
    script = ScriptedEngine(
        list(answers), {"/" + name: answer for name, answer in paths.items()}, then
    )
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(script))
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # type: ignore[method-assign]  # clients hang up in these tests
    script.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield script
    finally:
        script.closed = True  # a connection may come until the port closes
        script.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
        for connection in list(script.connections):  # as those of a process that ends
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def replaying(server: type[ReplayServer] = ReplayServer, **options: Any) -> Iterator[str]:
    """The address of a replay engine in a thread."""
    loop = asyncio.new_event_loop()
    until, ready, address = asyncio.Event(), threading.Event(), []

    def announce(url: str) -> None:
        address.append(url)
        ready.set()

    loaded = server.load(ReplayOptions(**{"port": 0, **options}))
    thread = threading.Thread(target=lambda: loop.run_until_complete(run(loaded, until, announce)))
    thread.start()
    try:
        assert ready.wait(120), "the replay engine did not start"
        yield address[0]
    finally:
        loop.call_soon_threadsafe(until.set)
        thread.join()
        loop.close()
