"""An HTTP proxy between the workers and the engine: it records every generation, and can damage
replies.

The recording is independent of rollq. It shows which prompts were generated more than once, and
whether every sampled token of a trajectory was sampled by the engine behind exactly the tokens
before it.
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

from rollq_worker.engine.exchange.generate import PROBE

GENERATE = "/generate"
CHAT = "/v1/chat/completions"
FULL = {
    "object": "error",
    "message": "The request queue is full.",
    "type": "503",
    "param": None,
    "code": 503,
}
Fault = Callable[[str], str]
"""From a path to the damage: a name in `_damaged_reply`, "full", "broken", "stall", "reset", or ""
for none.
"""


def prompt_digest(ids: Sequence[int]) -> bytes:
    return hashlib.sha1(array("I", ids).tobytes()).digest()


class EngineProxy:
    """Runs in a thread of its own. Tells jobs apart by their request ids, which begin with the
    job's.
    """

    def __init__(self, port: int, upstream: str) -> None:
        self.port = port
        self.upstream = upstream
        self.fault: Fault = lambda path: ""
        self.answered = 0
        """Generations whose reply was passed on undamaged."""
        self.damaged: Counter[str] = Counter()
        """Kind of damage -> requests that got it."""
        self.interrupted = 0
        """Generations that ended with their engine."""
        self.versions: set[str] = set()
        """Weight versions in undamaged replies."""
        self.replies: dict[str, dict[bytes, list[list[int]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        """job -> digest of the prompt -> the sampled ids of each undamaged reply."""
        self.started: Counter[tuple[str, bytes]] = Counter()
        """(job, digest of the prompt) -> generations that were not refused."""
        self.pending: Counter[str] = Counter()
        """job -> generations in flight."""
        self.last_asked: dict[str, float] = {}
        """job -> when its last generation was asked for (monotonic)."""
        self.last_abandoned: dict[str, float] = {}
        """job -> when a worker last hung up before the reply (monotonic)."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-proxy")
        self._thread.start()
        self._do(self._open())
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def regenerated(self) -> int:
        """Generations of jobs from a prompt that was generated before."""
        return sum(
            times - 1 for (job, _), times in self.started.items() if times > 1 and job != PROBE
        )

    @property
    def in_flight(self) -> int:
        """Generations that a worker waits for."""
        return sum(count for job, count in list(self.pending.items()) if job)

    def listen(self) -> None:
        self._do(self._listen())

    def refuse(self) -> None:
        """Refuse connections, as the port of a dead engine does."""
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
        # A connection per request: an idle one that the engine closed would look like a fault.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2
        )
        await self._runner.setup()

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        damage = self.fault(request.path)
        if damage == "full":
            self.damaged[damage] += 1
            return web.json_response(FULL, status=503)
        if damage == "broken":
            self.damaged[damage] += 1
            return web.Response(status=500, text="Internal Server Error")
        if damage == "stall":
            try:
                await asyncio.sleep(3600)
            finally:  # the client has hung up
                self.damaged[damage] += 1
        asked = _asked(request, body)
        self.started[asked] += asked[0] != ""
        try:
            with self._count_in_flight(asked[0]):
                status, reply, kind = await self._ask(request, body)
        except aiohttp.ClientError as e:
            if isinstance(e, aiohttp.ClientConnectorError):
                self.started[asked] -= asked[0] != ""
            else:
                self.interrupted += asked[0] != ""
            return _reset(request)
        if asked[0] and not (status == 200 and self._record(asked, reply, damage)):
            self.started[asked] -= 1
        if damage == "reset":
            self.damaged[damage] += 1
            return _reset(request)
        body = _damaged_reply(reply, damage)
        if body != reply:
            self.damaged[damage] += 1
        return web.Response(status=status, body=body, content_type=kind)

    @contextmanager
    def _count_in_flight(self, job: str) -> Iterator[None]:
        self.last_asked[job] = time.monotonic()
        self.pending[job] += 1
        try:
            yield
        except asyncio.CancelledError:
            self.last_abandoned[job] = time.monotonic()
            raise
        finally:
            self.pending[job] -= 1

    async def _ask(self, request: web.Request, body: bytes) -> tuple[int, bytes, str]:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "connection")
        }
        url = self.upstream + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            return answer.status, await answer.read(), answer.content_type

    def _record(self, asked: tuple[str, bytes], reply: bytes, damage: str) -> bool:
        """Keep an undamaged reply. Returns whether anything was sampled."""
        answer = json.loads(reply)
        ids = answer["output_ids"]
        if not damage:
            self.versions.add(str(answer["meta_info"].get("weight_version")))
            self.replies[asked[0]][asked[1]].append(ids)
            self.answered += 1
        return bool(ids)


def _asked(request: web.Request, body: bytes) -> tuple[str, bytes]:
    if request.path != GENERATE:
        return "", b""
    asked = json.loads(body)
    return asked["rid"].rpartition("/")[0], prompt_digest(asked["input_ids"])


def _reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


def _damaged_reply(reply: bytes, how: str) -> bytes:
    """The engine's reply with this damage; unchanged for any other name."""
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
            meta["output_token_logprobs"] = [
                [float("nan"), *rest] for _, *rest in meta["output_token_logprobs"]
            ]
        return json.dumps(body).encode()
    return reply


GARBAGE = ("half", "empty", "html", "list", "binary", "short", "count", "nan")
"""Damage with status 200."""
