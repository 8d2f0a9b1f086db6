"""Replay engines with LoRA adapters, and with routed experts, as SGLang has them."""

import base64
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from rollq.trajectory_extras import ExpertShape
from rollq_worker.replay_engine.http_bodies import bad_value, json_body
from rollq_worker.replay_engine.server import ReplayServer
from tests.rollq.routed_experts import SHAPE


class LoraServer(ReplayServer):
    """Loads adapters by name. A request loads an adapter again that was unloaded."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loaded: dict[str, str] = {}
        """Folders by name."""
        self.ever_loaded: dict[str, str] = {}

    def app(self) -> web.Application:
        app = super().app()
        app.add_routes(
            [
                web.post("/load_lora_adapter", self.load_lora_adapter),
                web.post("/unload_lora_adapter", self.unload_lora_adapter),
            ]
        )
        return app

    async def sample(self, body: Mapping[str, Any], *args: Any) -> dict[str, Any]:
        rest = dict(body)
        name = rest.pop("lora_path", None)
        if name is not None:
            if name not in self.ever_loaded:
                raise bad_value(f"Got LoRA adapter that has never been loaded: {name}")
            self.loaded[name] = self.ever_loaded[name]
        return await super().sample(rest, *args)

    async def load_lora_adapter(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        self.loaded[body["lora_name"]] = self.ever_loaded[body["lora_name"]] = body["lora_path"]
        return web.json_response({"success": True, "loaded_adapters": self.loaded})

    async def unload_lora_adapter(self, request: web.Request) -> web.Response:
        del self.loaded[(await json_body(request))["lora_name"]]
        return web.json_response({"success": True, "loaded_adapters": self.loaded})

    async def models(self, request: web.Request) -> web.Response:
        adapters = [
            {"id": name, "root": path, "parent": "replay"} for name, path in self.loaded.items()
        ]
        return web.json_response({"data": adapters})


class MoeServer(ReplayServer):
    """Reports made-up routed experts of SHAPE."""

    async def sample(self, body: Mapping[str, Any], *args: Any) -> dict[str, Any]:
        rest = dict(body)
        start = rest.pop("routed_experts_start_len", 0)
        wants_experts = rest.pop("return_routed_experts", False)
        reply = await super().sample(rest, *args)
        if wants_experts:
            tokens = [*rest["input_ids"], *reply["output_ids"]]
            reply["meta_info"]["routed_experts"] = _experts(tokens, start)
        return reply


def _experts(tokens: Sequence[int], start: int) -> str:
    """Those of `tokens[start:]` but for the last token: 32-bit ids in base64."""
    ids = array("i")
    for place in range(start, len(tokens) - 1):
        ids.extend(experts_of(tokens[place], place, SHAPE))
    return base64.b64encode(ids.tobytes()).decode()


def experts_of(token: int, place: int, shape: ExpertShape) -> list[int]:
    """The experts of one token: layer after layer, all different within a layer."""
    return [
        (token * 31 + place * 7 + layer * 5 + step) % shape.experts
        for layer in range(shape.layers)
        for step in range(shape.top_k)
    ]
