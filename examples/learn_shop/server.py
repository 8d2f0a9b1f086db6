"""The sampler behind SGLang's HTTP API: the paths that rollq's workers and its fleet call.

    python -m examples.learn_shop.server MODEL_DIR [--port 30000]

It is for this example: no streaming, no sampling parameters but temperature and stop tokens. Where
SGLang runs, use it.
"""

import argparse
import asyncio
import json
from typing import Any

import torch
import transformers
from aiohttp import web

from examples.learn_shop.sampler import Request, Sampler

VERSION = "0.5.23"
"""The SGLang version whose API this follows: each token has its weight version."""
HOST = "127.0.0.1"
SHUTDOWN_S = 0.1
PATHS = (
    "generate abort_request pause_generation continue_generation "
    "update_weights_from_disk flush_cache"
)
NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "skip_special_tokens": False,
}
"""Sampling parameters that are accepted with the value that changes nothing."""


class Refused(ValueError):
    """A request that the sampler does not take."""


class Server:
    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors], client_max_size=64 << 20)
        for name in PATHS.split():
            app.router.add_post(f"/{name}", getattr(self, name))
        for name in ("ready", "health", "model_info", "server_info"):
            app.router.add_get(f"/{name}", getattr(self, name))
        return app

    async def generate(self, http: web.Request) -> web.Response:
        body = await http.json()
        request = self._read(body)
        scores = self.sampler.call(lambda: self._scores(request, body))
        self.sampler.call(lambda: self.sampler.submit(request))
        try:
            reply = await asyncio.wrap_future(request.reply)
            reply["meta_info"] |= await asyncio.wrap_future(scores)
            return web.json_response(reply)
        except asyncio.CancelledError:  # the client has gone
            self.sampler.call(lambda: self.sampler.abort(request.rid))
            raise

    def _scores(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """The part of the reply with the prompt's own logprobs, if they were asked for."""
        start = body.get("logprob_start_len", -1)
        return (
            {"input_token_logprobs": self.sampler.score(request.prompt, start)}
            if start >= 0
            else {}
        )

    def _read(self, body: dict[str, Any]) -> Request:
        sampling = dict(body.get("sampling_params") or {})
        prompt = body["input_ids"]
        request = Request(
            rid=body["rid"],
            prompt=prompt,
            max_new_tokens=sampling.pop("max_new_tokens", 128),
            stop_ids=frozenset(sampling.pop("stop_token_ids", None) or ()),
            temperature=float(sampling.pop("temperature", 1.0)),
            seed=sampling.pop("sampling_seed", None),
        )
        if changed := [name for name, value in sampling.items() if NEUTRAL.get(name) != value]:
            raise Refused(f"the sampler does not know {', '.join(changed)}")
        if not prompt or not all(
            0 <= id < self.sampler.slots.model.config.vocab_size for id in prompt
        ):
            raise Refused("the prompt is empty, or has an id outside the vocabulary")
        if len(prompt) + request.max_new_tokens > self.sampler.context:
            raise Refused(
                "Requested token count exceeds the model's context length of "
                f"{self.sampler.context} tokens."
            )
        return request

    async def abort_request(self, http: web.Request) -> web.Response:
        body = await http.json()
        rid = None if body.get("abort_all") else body["rid"]
        self.sampler.call(lambda: self.sampler.abort(rid))
        return web.Response()

    async def pause_generation(self, http: web.Request) -> web.Response:
        mode = (await http.json()).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise Refused("mode is abort, retract or in_place")
        await asyncio.wrap_future(self.sampler.call(lambda: self.sampler.pause(mode)))
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, http: web.Request) -> web.Response:
        await asyncio.wrap_future(self.sampler.call(self.sampler.resume))
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weights_from_disk(self, http: web.Request) -> web.Response:
        body = await http.json()
        path, version, flush = (
            body["model_path"],
            body.get("weight_version"),
            body.get("flush_cache", True),
        )
        try:
            await asyncio.wrap_future(
                self.sampler.call(lambda: self.sampler.load(path, version, flush=flush))
            )
        except Exception as error:  # a directory without a model, weights of another shape
            reply = {"success": False, "message": str(error), "num_paused_requests": 0}
            return web.json_response(reply, status=400)
        message = "Succeeded to update model weights."
        return web.json_response({"success": True, "message": message, "num_paused_requests": 0})

    async def flush_cache(self, http: web.Request) -> web.Response:
        await asyncio.wrap_future(self.sampler.call(self.sampler.flush))
        return web.Response(text="Cache flushed.\n")

    async def ready(self, http: web.Request) -> web.Response:
        return web.Response(status=503 if self.sampler.paused else 200)

    async def health(self, http: web.Request) -> web.Response:
        """True if the thread that owns the model answers."""
        await asyncio.wrap_future(self.sampler.call(lambda: None))
        return await self.ready(http)

    async def model_info(self, http: web.Request) -> web.Response:
        path = self.sampler.path
        return web.json_response(
            {"model_path": path, "tokenizer_path": path, "weight_version": self.sampler.version}
        )

    async def server_info(self, http: web.Request) -> web.Response:
        """Answered by the thread that owns the model, as by SGLang's scheduler."""
        await asyncio.wrap_future(self.sampler.call(lambda: None))
        info = {
            "version": VERSION,
            "context_length": self.sampler.context,
            "max_req_input_len": self.sampler.context - 1,
        }
        return web.json_response(info)


@web.middleware
async def _errors(http: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(http)
    except (Refused, KeyError, json.JSONDecodeError) as error:
        return web.json_response(
            {"error": {"message": f"{type(error).__name__}: {error}"}}, status=400
        )


async def serve(sampler: Sampler, port: int) -> None:
    runner = web.AppRunner(
        Server(sampler).app(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    print(f"sampler: ready at http://{HOST}:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=30000, help="0: any free port")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    sampler = Sampler(args.model, "0", seed=args.seed)
    sampler.start()
    asyncio.run(serve(sampler, args.port))


if __name__ == "__main__":
    main()
