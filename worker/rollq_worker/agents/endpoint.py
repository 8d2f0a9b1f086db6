"""The endpoint of an episode, on loopback by default: turns in three dialects, `/v1/models` and
`/episode`.

Each episode has a port, a key and threads of its own, and the size of its pending requests is
bounded. One thread reads and writes for all of them. It knows requests and replies, and nothing of
tokens.
"""

import asyncio
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web

from rollq.env import Observation
from rollq.errors import WorkerFailure
from rollq.job import Job
from rollq.urls import in_address
from rollq_worker.agents.connections import CONNECTIONS, Connections
from rollq_worker.agents.dialects import Dialect, chat_completions, messages
from rollq_worker.agents.dialects.chat_completions import MODEL
from rollq_worker.agents.dialects.responses import Responses
from rollq_worker.agents.episode import AgentEpisode
from rollq_worker.agents.traces import Turn
from rollq_worker.agents.turn_request import RequestRefused, TurnRequest
from rollq_worker.text.whole_text import whole_json

HOST = "ROLLQ_AGENT_HOST"
"""Environment variable: the address of this machine at which endpoints listen, for agents in
containers. Without it, loopback.
"""
MODELS = "/v1/models/"
THREADS = 16
"""Number of an agent's requests that are carried out at once; more wait."""
LARGEST_BODY = 8 << 20
"""Longest request in bytes."""
REQUESTS, BODIES = 64, 16 << 20
"""Number of requests of an episode that are under way or wait, and bytes of all their bodies; more
are refused.
"""


class Address(NamedTuple):
    """Address of an agent's endpoint."""

    base_url: str
    key: str


class AgentEndpoint:
    """The endpoints of a process's episodes, served by one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rollq-agents", daemon=True
        )
        self._thread.start()

    @contextmanager
    def serve(self, episode: AgentEpisode) -> Iterator[Address]:
        """A block in which the episode has an endpoint."""
        served = _Served(episode)
        port = asyncio.run_coroutine_threadsafe(served.start(), self._loop).result()
        try:
            yield Address(f"http://{in_address(_host())}:{port}/v1", served.key)
        finally:
            episode.end()
            asyncio.run_coroutine_threadsafe(served.stop(), self._loop).result()

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(eq=False, slots=True)
class _PendingTurn:
    """A request for a turn that is under way."""

    dialect: Dialect
    body: bytes
    http: web.BaseRequest
    """The last time that it came: a client that gives up waiting sends it again, on another
    connection.
    """
    moved: asyncio.Future[None]
    """Done when it has come again, and the connection before need not be answered."""
    answer: asyncio.Future[tuple[TurnRequest, Turn]] = field(init=False)

    def has_hung_up(self) -> bool:
        return _has_hung_up(self.http)

    def is_dropped(self) -> bool:
        return self.answer.done() and self.answer.exception() is not None


def _host() -> str:
    return os.environ.get(HOST, "").strip("[]") or "127.0.0.1"


def _has_hung_up(http: web.BaseRequest) -> bool:
    return http.transport is None or http.transport.is_closing()


class _Served:
    """The server of one episode."""

    def __init__(self, episode: AgentEpisode) -> None:
        self.key = f"rollq-{secrets.token_urlsafe(24)}"
        self._episode = episode
        self._pending: list[_PendingTurn] = []
        self._bodies: dict[int, int] = {}
        """The size of each request that is under way or waits, by its `id`."""
        self._free = asyncio.Semaphore(THREADS)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rollq-agent-request")
        self._routes: dict[
            tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
        ] = {
            ("POST", "/v1/chat/completions"): partial(self._complete, chat_completions),
            ("POST", "/v1/responses"): partial(self._complete, Responses()),
            ("POST", "/v1/messages"): partial(self._complete, messages),
            ("POST", "/v1/messages/count_tokens"): self._count,
            ("GET", "/v1/models"): self._models,
            ("GET", MODELS): self._model,
            ("GET", "/episode"): self._opening,
            ("POST", "/episode/step"): self._step,
        }

    async def start(self) -> int:
        """Returns the port."""
        loop = asyncio.get_running_loop()

        def request(
            message: Any,
            payload: Any,
            protocol: Any,
            writer: Any,
            task: Any,
        ) -> web.BaseRequest:
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=LARGEST_BODY
            )

        self._web = Connections(self._handle, request_factory=request)
        family = socket.AF_INET6 if ":" in _host() else socket.AF_INET
        try:
            self._listening = socket.create_server((_host(), 0), family=family, backlog=CONNECTIONS)
        except OSError as e:
            raise WorkerFailure(
                f"the worker cannot listen at {_host()} for agents ({HOST}): {e.strerror or e}"
            ) from e
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._web.accept(self._listening))
        return int(self._listening.getsockname()[1])

    async def stop(self) -> None:
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listening.close()
        await self._web.shutdown(timeout=1.0)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            self._authorise(request)
            with self._web.request_with_key(request.protocol):
                return await self._route(request)(request)
        except RequestRefused as e:
            # its frames hold the request, and it, until somebody collects garbage
            e.__traceback__ = None
            refused = e
        except web.HTTPRequestEntityTooLarge:
            refused = RequestRefused("the request is too large", status=413)
        return web.json_response(_form_of(request).error(refused), status=refused.status)

    def _route(
        self, request: web.BaseRequest
    ) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        path = MODELS if request.path.startswith(MODELS) else request.path
        route = self._routes.get((request.method, path))
        if route is None:
            paths = ", ".join(f"{method} {path}" for method, path in self._routes)
            raise RequestRefused(
                f"{request.method} {request.path} is not served here; there is {paths}",
                status=404,
            )
        return route

    def _authorise(self, request: web.BaseRequest) -> None:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        key = request.headers.get("x-api-key") or bearer
        sent_key = key.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(sent_key, self.key.encode()):
            raise RequestRefused(
                "this is not the key of this episode", code="invalid_api_key", status=401
            )

    @contextmanager
    def _place(self, http: web.BaseRequest) -> Iterator[None]:
        """A block in which the request takes one of the episode's places. Raises RequestRefused
        when there is none.
        """
        is_length_known = http.content_length is not None and "Content-Encoding" not in http.headers
        if is_length_known:
            size = min(http.content_length or 0, LARGEST_BODY)
        else:
            size = LARGEST_BODY
        held = sum(self._bodies.values())
        if len(self._bodies) >= REQUESTS or held + size > BODIES:
            raise RequestRefused(
                f"{len(self._bodies)} requests of {held} bytes are under way; at most {REQUESTS} "
                f"of {BODIES} may be",
                code="rate_limit_exceeded",
                status=429,
            )
        self._bodies[id(http)] = size
        try:
            yield
        finally:
            del self._bodies[id(http)]

    async def _read(self, http: web.BaseRequest) -> bytes:
        try:
            body = await http.read()
        except (ConnectionError, web.RequestPayloadError) as e:
            raise RequestRefused(f"the body cannot be read: {e}") from e
        self._bodies[id(http)] = len(body)
        return body

    async def _complete(self, dialect: Dialect, http: web.BaseRequest) -> web.StreamResponse:
        with self._place(http):
            body = await self._read(http)
            moved = asyncio.get_running_loop().create_future()
            pending = self._sent_again(dialect, body)
            if pending is None:
                pending = _PendingTurn(dialect, body, http, moved)
                answer = partial(self._answer, dialect)
                pending.answer = asyncio.ensure_future(
                    self._in_thread(pending.has_hung_up, answer, body)
                )
                # nobody may be left who asks for it
                pending.answer.add_done_callback(asyncio.Future.exception)
                self._pending.append(pending)
            else:
                pending.moved.set_result(None)
                pending.http = http
                pending.moved = moved
            try:
                await asyncio.wait((pending.answer, moved), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not moved.done():
                    self._pending.remove(pending)
            if moved.done():
                # its client has sent it again, and that request takes the answer
                return web.Response(status=499)
            return await self._reply(pending, *pending.answer.result())

    def _sent_again(self, dialect: Dialect, body: bytes) -> _PendingTurn | None:
        """The same request of a client that has hung up since, if there is one."""
        for pending in self._pending:
            is_same = pending.dialect == dialect and pending.body == body
            if is_same and pending.has_hung_up() and not pending.is_dropped():
                return pending
        return None

    async def _reply(
        self, pending: _PendingTurn, request: TurnRequest, turn: Turn
    ) -> web.StreamResponse:
        if pending.has_hung_up():
            self._episode.not_delivered(turn)
            return web.Response(status=499)
        if not request.stream:
            return web.json_response(pending.dialect.reply(turn, request))
        stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        with suppress(ConnectionError):
            await stream.prepare(pending.http)
            for event in pending.dialect.stream(turn, request):
                await stream.write(event)
        return stream

    def _answer(self, dialect: Dialect, body: bytes) -> tuple[TurnRequest, Turn]:
        request = _request(dialect, body, self._episode.job)
        return request, self._episode.complete(request)

    async def _count(self, http: web.BaseRequest) -> web.StreamResponse:
        """The number of tokens of a request in Anthropic's form."""
        with self._place(http):
            body = await self._read(http)
            number = await self._in_thread(
                lambda: _has_hung_up(http),
                lambda body: self._episode.count(_request(messages, body, self._episode.job)),
                body,
            )
            return web.json_response({"input_tokens": number})

    async def _models(self, http: web.BaseRequest) -> web.StreamResponse:
        names = [MODEL, *self._episode.job.models]
        return web.json_response(_form_of(http).models(names))

    async def _model(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answers for any name: it means the policy, unless the job names models."""
        return web.json_response(_form_of(http).model(http.path.removeprefix(MODELS)))

    async def _opening(self, http: web.BaseRequest) -> web.StreamResponse:
        """The task of the episode: `{"messages": [...], "tools": [...]}`."""
        return web.json_response(
            {"messages": self._episode.world.opening, "tools": self._episode.world.tools}
        )

    async def _step(self, http: web.BaseRequest) -> web.StreamResponse:
        """One action in the environment: `{"name": ..., "arguments": {...}}`, whose arguments may
        be a call's text. Returns `{"text": ..., "done": ...}`.
        """
        with self._place(http):
            body = await self._read(http)
            observed = await self._in_thread(lambda: _has_hung_up(http), self._act, body)
            return web.json_response({"text": observed.text, "done": observed.done})

    def _act(self, body: bytes) -> Observation:
        step = _json(body)
        if isinstance(step, dict):
            name = step.get("name")
            arguments = step.get("arguments", {})
            if isinstance(name, str) and name and isinstance(arguments, dict | str):
                return self._episode.step(name, arguments)
        raise RequestRefused('a step is {"name": "...", "arguments": {...}}')

    async def _in_thread(
        self, has_hung_up: Callable[[], bool], function: Callable[[bytes], Any], body: bytes
    ) -> Any:
        """Result of the function for the body. A request whose client has gone is dropped before it
        begins.
        """
        async with self._free:
            if has_hung_up():
                raise RequestRefused("its client has gone", status=499)
            try:
                running = asyncio.get_running_loop().run_in_executor(self._threads, function, body)
            except RuntimeError as e:  # the pool is closed
                raise RequestRefused("the episode is over", code="episode_over", status=503) from e
            return await running


def _form_of(http: web.BaseRequest) -> Any:
    """The dialect of models and errors for this client."""
    is_anthropics = http.path.startswith("/v1/messages") or "anthropic-version" in http.headers
    return messages if is_anthropics else chat_completions


def _request(dialect: Dialect, body: bytes, job: Job) -> TurnRequest:
    """Reads in a request's own thread, because a large body would hold up the other episodes."""
    fields = _json(body)
    try:
        request = dialect.read(fields)
    except RecursionError as e:
        raise RequestRefused("the request is nested too deeply") from e
    name = fields.get("model")
    if not job.models or name == MODEL:
        return request
    if not isinstance(name, str) or name not in job.models:
        raise RequestRefused(
            f"the model is {name!r:.80}; the job has {', '.join((MODEL, *job.models))}",
            param="model",
            code="model_not_found",
            status=404,
        )
    return replace(request, model=name)


def _json(body: bytes) -> Any:
    try:
        return whole_json(json.loads(body))
    except (ValueError, RecursionError) as e:
        raise RequestRefused(f"the body is not valid JSON: {e}") from e
