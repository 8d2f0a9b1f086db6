"""What stands between the workers and the engine: it writes down what was asked for and answered, and can misbehave.

The recording is the account's independent witness: which prompts were generated more than once, and whether every
sampled token of a trajectory was sampled by the engine behind exactly the tokens before it.
"""

import asyncio
import hashlib
import json
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp import web

GENERATE = "/generate"
CHAT = "/v1/chat/completions"
FULL = {"object": "error", "message": "The request queue is full.", "type": "503", "param": None, "code": 503}
Fault = Callable[[str], str]
"""From a path to how to answer it: one of the names in `Gateway._spoil`, or "" for as usual."""


def digest(ids: Sequence[int]) -> bytes:
    return hashlib.sha1(array("I", ids).tobytes()).digest()


class Gateway:
    """An HTTP proxy in a thread of its own. Jobs are told apart by their routing key."""

    def __init__(self, port: int, upstream: str) -> None:
        self.port = port
        self.upstream = upstream
        self.fault: Fault = lambda path: ""
        self.answered = 0
        """Generations that came back whole."""
        self.spoiled: Counter[str] = Counter()
        """How they were -> answers that were not the engine's, and requests that were left without one."""
        self.broken = 0
        """Requests that the engine began and died with."""
        self.versions: set[str] = set()
        """Of the weights, as whole answers said."""
        self.replies: dict[str, dict[bytes, list[list[int]]]] = defaultdict(lambda: defaultdict(list))
        """job -> digest of the prompt -> sampled ids, an entry an answer."""
        self.begun: Counter[tuple[str, bytes]] = Counter()
        """(job, prompt) -> generations that were begun and not refused."""
        self.open: Counter[str] = Counter()
        """job -> generations that it waits for."""
        self.asked: dict[str, float] = {}
        """job -> when it last asked for one (monotonic)."""
        self.left: dict[str, float] = {}
        """job -> when whoever asked for it last hung up without an answer."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateway")
        self._thread.start()
        self._do(self._open())
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def regenerated(self) -> int:
        """Generations that were begun again from the same prompt."""
        return sum(times - 1 for times in self.begun.values() if times > 1)

    @property
    def waiting(self) -> int:
        """Generations that somebody waits for."""
        return sum(count for job, count in list(self.open.items()) if job)

    def up(self) -> None:
        """Listen."""
        self._do(self._up())

    def down(self) -> None:
        """As a dead engine's port: refuses."""
        self._do(self._site.stop())

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, what: Any) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    async def _open(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        # A connection for each request: one that an engine closed while it was idle would look like a fault.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()

    async def _up(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        spoil = self.fault(request.path)
        if spoil == "full":
            self.spoiled[spoil] += 1
            return web.json_response(FULL, status=503)
        if spoil == "broken":
            self.spoiled[spoil] += 1
            return web.Response(status=500, text="Internal Server Error")
        if spoil == "stall":
            try:
                await asyncio.sleep(3600)
            finally:  # it has hung up
                self.spoiled[spoil] += 1
        asked = _asked(request, body)
        self.begun[asked] += asked[0] != ""
        try:
            with self._waiting(asked[0]):
                status, reply, kind = await self._ask(request, body)
        except aiohttp.ClientError as e:
            if isinstance(e, aiohttp.ClientConnectorError):
                self.begun[asked] -= asked[0] != ""
            else:
                self.broken += asked[0] != ""
            return _reset(request)
        if asked[0] and not (status == 200 and self._record(asked, reply, spoil)):
            self.begun[asked] -= 1
        if spoil == "reset":
            self.spoiled[spoil] += 1
            return _reset(request)
        body = _spoil(reply, spoil)
        if body != reply:
            self.spoiled[spoil] += 1
        return web.Response(status=status, body=body, content_type=kind)

    @contextmanager
    def _waiting(self, job: str) -> Iterator[None]:
        self.asked[job] = time.monotonic()
        self.open[job] += 1
        try:
            yield
        except asyncio.CancelledError:
            self.left[job] = time.monotonic()
            raise
        finally:
            self.open[job] -= 1

    async def _ask(self, request: web.Request, body: bytes) -> tuple[int, bytes, str]:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "connection")}
        url = self.upstream + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            return answer.status, await answer.read(), answer.content_type

    def _record(self, asked: tuple[str, bytes], reply: bytes, spoil: str) -> bool:
        """Whether anything was sampled."""
        answer = json.loads(reply)
        ids = answer["output_ids"]
        if not spoil:
            self.versions.add(str(answer["meta_info"].get("weight_version")))
            self.replies[asked[0]][asked[1]].append(ids)
            self.answered += 1
        return bool(ids)


def _asked(request: web.Request, body: bytes) -> tuple[str, bytes]:
    if request.path != GENERATE:
        return "", b""
    return request.headers.get("X-SMG-Routing-Key", "?"), digest(json.loads(body)["input_ids"])


def _reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


def _spoil(reply: bytes, how: str) -> bytes:
    """The engine's answer, as it must not be believed."""
    match how:
        case "half":
            return reply[: len(reply) // 2]
        case "empty":
            return b""
        case "html":
            return b"<html><body>502 Bad Gateway</body></html>"
        case "list":
            return b"[]"
        case "binary":
            return bytes(range(256)) * 4
    if how in ("short", "count", "nan"):
        body = json.loads(reply)
        meta = body.get("meta_info", {})
        if how == "short":  # one logprob is missing
            meta["output_token_logprobs"] = meta.get("output_token_logprobs", [])[1:]
        elif how == "count":
            meta["completion_tokens"] = 10**9
        else:
            meta["output_token_logprobs"] = [[float("nan"), *rest] for _, *rest in meta["output_token_logprobs"]]
        return json.dumps(body).encode()
    return reply


GARBAGE = ("half", "empty", "html", "list", "binary", "short", "count", "nan")
"""Bodies with status 200 that are no reply of /generate."""
