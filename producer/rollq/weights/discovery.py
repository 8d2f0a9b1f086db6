"""The engines at an address, and those behind routers."""

import urllib.parse
from collections.abc import Callable

from rollq.errors import SettingsError, SyncError
from rollq.urls import is_http, mask_url
from rollq.weights.engine_control import (
    CONTROL_TIMEOUT_S,
    NOT_FOUND,
    ControlConnection,
    ControlFailure,
    UpdatingEngine,
)
from rollq.weights.sglang import SGLangEngine
from rollq.weights.vllm import VllmEngine

ROUTER_TIMEOUT_S = 10.0
"""Limit in seconds for a router's list of engines."""


def check_engine_url(url: str) -> None:
    """Raises SettingsError unless it is the address of an engine or a router, without a login."""
    is_address = isinstance(url, str) and is_http(url)
    if not is_address or "@" in urllib.parse.urlsplit(url).netloc:
        raise SettingsError(
            f"not the address of an engine, like http://HOST:PORT: {mask_url(str(url))} (a key "
            "goes into a file)"
        )


def engines_at(
    url: str,
    key: str | None,
    on_step: Callable[[str, str], None] | None,
    timeout_s: float = CONTROL_TIMEOUT_S,
) -> list[UpdatingEngine]:
    """The engine at this address, or those behind smg (`--enable-rl`) with smg's paths to them.
    Raises ControlFailure.
    """
    direct = ControlConnection(url, key)
    if direct.call("GET", "/model_info", timeout_s=timeout_s).status != NOT_FOUND:
        return [SGLangEngine(mask_url(url), direct, on_step)]
    listing = direct.call("GET", "/v1/rl/workers", timeout_s=timeout_s)
    if not listing.ok or not isinstance(listing.body, dict):
        if direct.call("GET", "/version", timeout_s=timeout_s).ok:
            return [VllmEngine(mask_url(url), direct, on_step)]
        raise ControlFailure(
            "no engine here (/model_info: HTTP 404). Routers do not pass weight updates on: give "
            "the engines' own addresses, or start smg with --enable-rl"
        )
    try:
        workers = [(str(one["id"]), str(one["url"])) for one in listing.body.get("workers") or []]
    except (TypeError, KeyError):
        raise ControlFailure(
            "/v1/rl/workers does not name the id and url of each engine: is this smg?"
        ) from None
    engines: list[UpdatingEngine] = []
    for worker_id, engine_url in workers:
        path = f"/v1/rl/workers/{urllib.parse.quote(worker_id)}/engine"
        connection = ControlConnection(url, key, path)
        engines.append(SGLangEngine(mask_url(engine_url), connection, on_step))
    if not engines:
        raise ControlFailure("this smg has no workers")
    return engines


def router_engines(url: str) -> list[str]:
    """The addresses of the engines behind SGLang's router. Raises SyncError when it does not list
    them, SettingsError for a wrong address.
    """
    check_engine_url(url)
    try:
        router = ControlConnection(url.rstrip("/"), None)
        answer = router.call("GET", "/workers", timeout_s=ROUTER_TIMEOUT_S)
        if not answer.ok:
            raise ControlFailure(answer.refusal())
        return sorted(str(worker["url"]).rstrip("/") for worker in answer.body["workers"])
    except (ControlFailure, KeyError, TypeError) as e:
        raise SyncError(
            f"{mask_url(url)}/workers does not list its engines: {type(e).__name__}: {e}"
        ) from None
