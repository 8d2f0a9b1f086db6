"""The HTTP surface of the replay engine: SGLang's paths, statuses and shapes.

Every error has the shape that the real server gives it. It does not choose turns or times.
"""

import asyncio
import hashlib
import json
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

import rollq
from rollq.errors import SettingsError
from rollq.urls import in_address
from rollq_worker.replay_engine.chat_completions import complete
from rollq_worker.replay_engine.generate import Fault, ReplayEngine, ReplayOptions
from rollq_worker.replay_engine.generate_request import ModelSize, read_request
from rollq_worker.replay_engine.http_bodies import (
    HttpError,
    bad_body,
    bad_value,
    json_body,
    queue_full,
)
from rollq_worker.replay_engine.images import with_placeholders
from rollq_worker.replay_engine.policy.ground_truth import GroundTruth
from rollq_worker.replay_engine.policy.task_progress import TaskIndex
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer

UNFLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or "
    "queued. Retract or finish them, then call /flush_cache."
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ReplayServer:
    def __init__(self, options: ReplayOptions, tokenizer: Tokenizer, tasks: TaskIndex) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.tasks = tasks
        self.ground_truth = GroundTruth(tokenizer, tasks, options.mistakes)
        self.engine = ReplayEngine(options, self.ground_truth)
        self.scheduler = self.engine.scheduler
        self.size = ModelSize(context=options.context_length, vocab=tokenizer.vocab_size)
        self.first_model_path = options.tokenizer or "replay"
        self.model_path = self.first_model_path
        """Path of the present weights."""
        self.weight_version = options.weight_version
        """Version of the weights, as /model_info names it."""
        self.unhealthy = False
        """True if the last health check failed."""

    @classmethod
    def load(cls, options: ReplayOptions) -> "ReplayServer":
        """A server with the tokenizer and the tasks that the options name."""
        tokenizer = load_tokenizer(options.tokenizer, options.template)
        return cls(options, tokenizer, TaskIndex.load(options.env))

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors], client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/abort_request", self.abort_request),
                web.post("/pause_generation", self.pause_generation),
                web.post("/continue_generation", self.continue_generation),
                web.post("/update_weight_version", self.update_weight_version),
                web.post("/update_weights_from_disk", self.update_weights_from_disk),
                web.post("/weights_checker", self.weights_checker),
                web.post("/flush_cache", self.flush_cache),
                web.post("/tokenize", self.tokenize),
                web.post("/v1/chat/completions", self.chat_completions),
                web.get("/ready", self.ready),
                web.get("/health", self.health),
                web.get("/health_generate", self.health),
                web.get("/ping", self.ping),
                web.get("/model_info", self.model_info),
                web.get("/v1/models", self.models),
                web.get("/server_info", self.server_info),
                web.get("/v1/loads", self.loads),
            ]
        )
        return app

    async def generate(self, request: web.Request) -> web.StreamResponse:
        rng = self.engine.randomness()
        fault = self.engine.draw_fault(rng)
        if fault is Fault.FULL:
            raise queue_full()
        if fault is Fault.RESET:
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError
        text = json.dumps(await self.sample(await json_body(request), rng, fault))
        if fault is Fault.GARBAGE:
            text = text[: len(text) // 2]
        return web.Response(text=text, content_type="application/json")

    async def sample(
        self, body: Mapping[str, Any], rng: random.Random, fault: Fault | None
    ) -> dict[str, Any]:
        """The reply to a body of /generate. Raises HttpError."""
        body = with_placeholders(body, self.tokenizer)
        wanted = read_request(body, self.size, self.tokenizer.encode)
        return await self.engine.generate(wanted, rng, fault)

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        if body.get("abort_all"):
            self.scheduler.abort(None)
        elif isinstance(body.get("rid"), str):
            self.scheduler.abort(body["rid"])
        return web.Response()

    async def pause_generation(self, request: web.Request) -> web.Response:
        mode = (await json_body(request)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise bad_body("mode", "Input should be 'abort', 'retract' or 'in_place'")
        await self.scheduler.pause(mode)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        await json_body(request)
        self.scheduler.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weight_version(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        version = body.get("new_version")
        if not isinstance(version, str):
            raise bad_body("new_version", "Field required")
        self.scheduler.set_version(version)
        self.weight_version = version
        if body.get("abort_all_requests", True):
            self.scheduler.abort(None)
        message = f"Weight version updated to {version}"
        return web.json_response({"success": True, "message": message, "new_version": version})

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        if not isinstance(body.get("model_path"), str):
            raise bad_body("model_path", "Field required")
        path = body["model_path"]
        if path.startswith(("/", ".")) and not Path(path).exists():  # any other name may be a hub's
            message = f"Failed to load the weights: there is no {path} on the engine's machine."
            return web.json_response(
                {"success": False, "message": message, "num_paused_requests": 0}, status=400
            )
        if body.get("abort_all_requests"):
            self.scheduler.abort(None)
        version = body.get("weight_version")
        await self.scheduler.load_weights(version)
        if body.get("flush_cache", True):
            if not self.scheduler.idle:  # the weights are in use, and /model_info does not show it
                return web.json_response(
                    {"success": False, "message": UNFLUSHED, "num_paused_requests": 0}, status=400
                )
            self.ground_truth.flush_cache()
        self.model_path = path
        message = "Succeeded to update model weights."
        if version is not None:
            self.weight_version = version
            message += f" Weight version updated to {version}."
        return web.json_response({"success": True, "message": message, "num_paused_requests": 0})

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": self.first_model_path, "object": "model", "root": self.first_model_path}
        return web.json_response({"object": "list", "data": [model | {"parent": None}]})

    async def weights_checker(self, request: web.Request) -> web.Response:
        """The checksum of the weights, which are their path."""
        action = (await json_body(request)).get("action")
        if action != "checksum":
            message = f"The replay engine knows no action {action!r}."
            return web.json_response({"success": False, "message": message}, status=400)
        weight = _checksum(self.model_path)
        rank = {
            "checksums": {"weight": weight},
            "per_gpu_checksum": _checksum(weight),
            "parallelism_info": [],
        }
        reply = {"success": True, "message": "Success.", "ranks": [rank]}
        return web.json_response(reply | {"per_engine_checksum": _checksum(_checksum(weight))})

    async def flush_cache(self, request: web.Request) -> web.Response:
        if not self.scheduler.idle:
            return web.Response(status=400, text="Flush cache failed.\n")
        self.ground_truth.flush_cache()
        return web.Response(text="Cache flushed.\n")

    async def ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.scheduler.pausing or self.unhealthy else 200)

    async def ping(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.unhealthy else 200)

    async def health(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(20.0):  # as SGLang does
                await self.scheduler.wait_while_paused()
        except TimeoutError:
            self.unhealthy = True
        else:
            self.unhealthy = False
        return web.Response(status=503 if self.unhealthy else 200)

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": self.model_path,
                "served_model_name": self.model_path,
                "tokenizer_path": self.first_model_path,
                "is_generation": True,
                "weight_version": self.weight_version,
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        parallelism = {
            "tp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "ep_size": 1,
            "dtype": "auto",
            "quantization": None,
        }
        return web.json_response(
            {
                "model_path": self.first_model_path,
                "tokenizer_path": self.first_model_path,
                # the one it was started with, as on the real server
                "weight_version": self.options.weight_version,
                "context_length": self.size.context,
                "max_req_input_len": self.size.prompt,
                "max_total_num_tokens": 1 << 30,  # it has no memory that could fill
                "max_running_requests": self.options.max_running or None,
                "max_queued_requests": self.options.max_queued or None,
                **parallelism,
                "version": f"rollq-{rollq.__version__}",
                "internal_states": [],
            }
        )

    async def loads(self, request: web.Request) -> web.Response:
        requests = {
            "num_running_reqs": self.scheduler.running,
            "num_waiting_reqs": self.scheduler.waiting,
        }
        return web.json_response(
            {"loads": [{"dp_rank": 0, **requests, "num_used_tokens": 0, "token_usage": 0.0}]}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        text = (await json_body(request)).get("prompt")
        if not isinstance(text, str):
            raise bad_body("prompt", "Input should be a valid string")
        ids = self.tokenizer.encode(text).tolist()
        return web.json_response(
            {"tokens": ids, "count": len(ids), "max_model_len": self.size.context}
        )

    async def chat_completions(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        if body.get("stream"):
            raise bad_value("The replay engine does not stream.")
        await self.scheduler.wait_while_paused()
        return web.json_response(complete(body, self.tasks, self.tokenizer, self.scheduler.version))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except HttpError as e:
        return web.json_response(e.body, status=e.status)
    except web.HTTPException as e:  # of a path or a method that there is not
        return web.json_response({"detail": e.reason}, status=e.status)


async def run(server: ReplayServer, until: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serves until `until` is set. `ready` gets the address. Raises SettingsError when the port is
    taken.
    """
    host = server.options.host
    port = server.options.port
    # A client that hangs up ends its generation, so that its request id is free again.
    runner = web.AppRunner(
        server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        ready(f"http://{in_address(host)}:{runner.addresses[0][1]}")
        await until.wait()
    except OSError as e:
        raise SettingsError(f"cannot listen on {host}:{port}: {e.strerror or e}") from e
    finally:
        await runner.cleanup()


def serve(**options: Any) -> None:
    """Serves in the foreground until SIGTERM or SIGINT. The keywords are those of `ReplayOptions`.

    One line on stdout reports when it is ready, and where.
    """
    serve_until_signalled(ReplayServer.load(ReplayOptions(**options)))


def serve_until_signalled(server: ReplayServer) -> None:
    """Serves in the foreground until SIGTERM or SIGINT."""

    async def until_signalled() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await run(
            server, stopped, lambda address: print(f"rollq engine: ready at {address}", flush=True)
        )

    asyncio.run(until_signalled())
