"""A reverse proxy in front of an engine that records every call for a generation.

Each line of its file is one answered call, in the order of the answers: `{"headers", "request",
"status", "reply"}`. Those of vLLM are written as SGLang would have sent and answered them.
"""

import asyncio
import json
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

VLLM = "/inference/v1/generate"


class Recorder:
    """Forwards everything to `upstream` but the paths in `missing`, and appends the calls for
    generations to `file`.
    """

    def __init__(self, upstream: str, file: Path, missing: Collection[str] = ()) -> None:
        self.missing = missing
        self.upstream = upstream.rstrip("/")
        self.url = ""
        """Of the proxy itself, set when it is ready."""
        self.file = file
        self.file.touch()

    def calls(self) -> list[dict[str, Any]]:
        """Those so far, without a line that is still being written."""
        lines = self.file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    async def run(self, until: asyncio.Event, ready: threading.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self.session:
            app = web.Application(client_max_size=64 << 20)
            app.router.add_route("*", "/{path:.*}", self.forward)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                ready.set()
                await until.wait()
            finally:
                await runner.cleanup()

    async def forward(self, request: web.Request) -> web.Response:
        if request.path in self.missing:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.read()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "connection")
        }
        url = self.upstream + request.path_qs
        try:
            async with self.session.request(
                request.method, url, data=body, headers=headers
            ) as answer:
                reply = await answer.read()
        except aiohttp.ClientError:
            return web.Response(status=502, text="the recorded engine does not answer")
        if request.path in ("/generate", VLLM):
            self.record(request, body, answer.status, reply)
        return web.Response(status=answer.status, body=reply, content_type=answer.content_type)

    def record(self, request: web.Request, body: bytes, status: int, reply: bytes) -> None:
        sent, answered = _json(body), _json(reply)
        if request.path == VLLM:
            sent |= {"input_ids": sent["token_ids"], "rid": sent.get("request_id", "")}
            answered = _as_sglang(answered) if status == 200 else answered
        line = {
            "headers": dict(request.headers),
            "request": sent,
            "status": status,
            "reply": answered,
        }
        with self.file.open("a") as out:
            out.write(json.dumps(line) + "\n")


def _as_sglang(reply: dict[str, Any]) -> dict[str, Any]:
    [choice] = reply["choices"]
    entries = (choice["logprobs"] or {"content": []})["content"]
    meta = {
        "output_token_logprobs": [[one["logprob"], one["token_id"], None] for one in entries],
        "weight_versions": choice["weight_versions"] or [],
        "finish_reason": {"type": choice["finish_reason"]},
    }
    return {"output_ids": choice["token_ids"] or [], "meta_info": meta}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


@contextmanager
def recording(upstream: str, file: Path, missing: Collection[str] = ()) -> Iterator[Recorder]:
    """A recorder on a port of its own, in a thread."""
    recorder, ready = Recorder(upstream, file, missing), threading.Event()
    loop = asyncio.new_event_loop()
    until = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(recorder.run(until, ready)))
    thread.start()
    try:
        assert ready.wait(60), "the recorder did not start"
        yield recorder
    finally:
        loop.call_soon_threadsafe(until.set)
        thread.join()
        loop.close()
