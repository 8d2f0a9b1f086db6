"""The control side of one SGLang server: what it serves, pause, new weights, checksum, continue.

Every call has a time limit, and ends in an answer or in a ControlFailure with a reason that holds
no key. Paths and shapes are those of SGLang 0.5.15 and 0.5.23 (`srt/entrypoints/http_server.py`);
0.5.15 lacks `/ready` and versions per token. Standard library only. It knows nothing of other
engines.
"""

import http.client
import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rollq.errors import SyncError
from rollq.urls import mask_url

log = logging.getLogger("rollq")

ROUTER_TIMEOUT_S = 10.0
"""Limit in seconds for a router's list of engines."""
CONTROL_TIMEOUT_S = 60.0
"""Limit of a call that loads nothing. A pause that aborts returns when the last request has ended.
"""
FLUSH_TRIES, FLUSH_PAUSE_S = 20, 0.5
"""An engine whose requests were just aborted is idle a moment later."""
NOT_FOUND = 404
REFUSED = 400
SHAPE = ("version", "tp_size", "dp_size", "pp_size", "ep_size", "dtype", "quantization")
"""Fields of /server_info that engines must share to hold the same tensors."""


class PauseMode(StrEnum):
    """The fate of running requests in a pause."""

    RETRACT = "retract"
    """They go on after the pause, and their prefix is computed again under the new weights."""
    IN_PLACE = "in_place"
    """They go on with the KV cache of the old weights, which also serves later requests. Quicker,
    but it mixes old and new weights: not a sample from any policy.
    """
    ABORT = "abort"
    """They end with what they have. rollq's workers continue each turn from there."""


class ControlFailure(Exception):
    """A call did not do what it should. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    """JSON as values, anything else as text."""

    @property
    def ok(self) -> bool:
        return self.status == 200

    def refusal(self) -> str:
        """The reason why it is not ok, in one line."""
        if self.status in (401, 403):
            return (
                f"HTTP {self.status}: the engine wants another API key: see api_key_file "
                "(--api-key-file)"
            )
        message = self.body
        if isinstance(message, dict):
            texts = [message.get(name) for name in ("message", "error", "error_message")]
            message = next(filter(None, texts), "")
        words = " ".join(str(message or "").split())
        return f"HTTP {self.status} {words[:300]}".rstrip()


@dataclass(frozen=True, slots=True)
class Serving:
    """The weights that an engine says it serves."""

    version: str
    """Its weight version."""
    path: str
    """The folder of its weights, without a slash at the end."""
    paused: bool | None
    """None: a server without `/ready`, which cannot say."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


class ControlConnection:
    """Calls to one server. `prefix` leads through a router, which wraps each reply."""

    def __init__(self, url: str, key: str | None, prefix: str = "") -> None:
        self._base = url + prefix
        self._wrapped = bool(prefix)
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> Answer:
        """The answer, whatever its status. Raises ControlFailure when none came."""
        data = b"" if method == "POST" else None
        if body is not None:
            data = json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data=data, headers=self._headers, method=method
        )
        try:
            try:
                with _OPENER.open(request, timeout=timeout_s) as reply:
                    answer = _answer(reply.status, reply.read())
            except urllib.error.HTTPError as e:
                with e:
                    answer = _answer(e.code, e.read())
        except TimeoutError:
            raise ControlFailure(f"no answer to {path} within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as e:
            reason = getattr(e, "reason", None) or e
            if isinstance(reason, TimeoutError):
                raise ControlFailure(f"cannot be reached within {timeout_s:g} s") from None
            raise ControlFailure(f"{path}: {type(reason).__name__}: {reason}") from None
        if self._wrapped and isinstance(answer.body, dict) and "body" in answer.body:
            return Answer(answer.status, answer.body["body"])
        return answer


def _answer(status: int, raw: bytes) -> Answer:
    try:
        return Answer(status, json.loads(raw))
    except ValueError:
        return Answer(status, raw.decode("utf-8", "replace"))


class UpdatingEngine:
    """One engine during one weight update. `step` is what it is doing."""

    def __init__(
        self,
        url: str,
        connection: ControlConnection,
        on_step: Callable[[str, str], None] | None = None,
    ) -> None:
        self.url = url
        self.server = ""
        """SGLang's version."""
        self.shape: tuple[str, ...] = ()
        """Engines of one shape must have the same checksum."""
        self.paused_at: float | None = None
        self.step = ""
        self._connection = connection
        self._on_step = on_step
        self._mode = PauseMode.ABORT

    def begin(self, step: str) -> None:
        self.step = step
        if self._on_step:
            try:
                self._on_step(self.url, step)
            except Exception as e:  # else an engine would stay paused because nobody can be told
                log.warning(
                    "%s: the report of step %s failed: %s: %s", self.url, step, type(e).__name__, e
                )

    def _do(self, path: str, body: Mapping[str, Any], timeout_s: float = CONTROL_TIMEOUT_S) -> Any:
        """The body of a 200. Raises ControlFailure for any other status."""
        answer = self._connection.call("POST", path, body, timeout_s)
        if not answer.ok:
            raise ControlFailure(answer.refusal())
        return answer.body

    def inspect(self) -> Serving:
        """The weights that it serves now. Raises ControlFailure."""
        self.begin("look")
        info = self._connection.call("GET", "/server_info")
        fields = info.body if info.ok and isinstance(info.body, dict) else {}
        self.server = str(fields.get("version", ""))
        self.shape = tuple(str(fields.get(name)) for name in SHAPE)
        return self.serving()

    def serving(self, timeout_s: float = CONTROL_TIMEOUT_S) -> Serving:
        """The same in two small calls. Raises ControlFailure."""
        info = self._connection.call("GET", "/model_info", timeout_s=timeout_s)
        if not info.ok:
            raise ControlFailure(info.refusal())
        try:
            version, path = info.body["weight_version"], info.body["model_path"]
        except (TypeError, KeyError):
            raise ControlFailure(
                "/model_info does not name the weight version: is this an SGLang server?"
            ) from None
        ready = self._connection.call("GET", "/ready", timeout_s=timeout_s)
        is_paused = None if ready.status == NOT_FOUND else not ready.ok
        return Serving(str(version), str(path).rstrip("/"), is_paused)

    def pause(self, mode: PauseMode, serving: Serving) -> None:
        """A server without `/ready` has no versions per token, so its requests are aborted: no
        reply then holds tokens of two versions. (`/ready` came with 0.5.20, versions per token with
        0.5.19.)
        """
        self.begin("pause")
        self._mode = PauseMode.ABORT if serving.paused is None else mode
        self.paused_at = time.monotonic()
        self._do("/pause_generation", {"mode": self._mode})

    def load(self, path: str, version: str, timeout_s: float) -> None:
        """New weights from disk, with the version in the same call. The cache is flushed in a call
        of its own, because a flush that is refused makes this call fail (0.5.23, where /model_info
        then names the old version) or ends the server (0.5.15) although the weights are in use.
        """
        self.begin("update")
        body = {
            "model_path": path,
            "weight_version": version,
            "flush_cache": False,
            "abort_all_requests": False,
        }
        self._do("/update_weights_from_disk", body, timeout_s)

    def name_version(self, version: str) -> None:
        """The version of weights that came by another way. Requests stay as they are."""
        self.begin("update")
        self._do("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    def adapters(self) -> dict[str, str]:
        """The folders of the LoRA adapters that are loaded, without a slash at the end, by the
        engine's names of them. Raises ControlFailure.
        """
        answer = self._connection.call("GET", "/v1/models")
        if not answer.ok:
            raise ControlFailure(answer.refusal())
        try:
            loaded = [model for model in answer.body["data"] if model.get("parent")]
            return {str(model["id"]): str(model["root"]).rstrip("/") for model in loaded}
        except (TypeError, KeyError, AttributeError):
            raise ControlFailure("/v1/models lists no models: is this an SGLang server?") from None

    def load_adapter(self, name: str, path: str, timeout_s: float) -> None:
        """Requests go on meanwhile."""
        self.begin("load")
        self._do("/load_lora_adapter", {"lora_name": name, "lora_path": path}, timeout_s)

    def unload_adapter(self, name: str, timeout_s: float) -> None:
        """The engine waits for the requests that use it."""
        self.begin("unload")
        self._do("/unload_lora_adapter", {"lora_name": name}, timeout_s)

    def checksum(self, timeout_s: float) -> str | None:
        """Of all its tensors; None where the server has no checker or the checker does not work
        there.
        """
        answer = self._connection.call(
            "POST", "/weights_checker", {"action": "checksum"}, timeout_s
        )
        if not answer.ok or not isinstance(answer.body, dict):
            return None
        checksum: str | None = answer.body.get("per_engine_checksum")
        return checksum

    def flush(self) -> None:
        """Empty the cache that the old weights have left. Raises ControlFailure."""
        if self._mode is PauseMode.IN_PLACE:
            return
        self.begin("flush")
        # Retracted requests wait, and some servers flush only when none does (0.5.20): those are
        # aborted.
        if self._mode is PauseMode.RETRACT and self._connection.call("POST", "/flush_cache").ok:
            return
        self._do("/pause_generation", {"mode": PauseMode.ABORT})
        for _ in range(FLUSH_TRIES):
            answer = self._connection.call("POST", "/flush_cache")
            if answer.ok:
                return
            if answer.status != REFUSED:
                break
            time.sleep(FLUSH_PAUSE_S)
        raise ControlFailure(answer.refusal())

    def resume(self) -> float:
        """Generate again. Returns the seconds of the pause. Raises ControlFailure."""
        self.begin("continue")
        self._do("/continue_generation", {})
        if self.paused_at is None:
            return 0.0
        return time.monotonic() - self.paused_at


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
        return [UpdatingEngine(mask_url(url), direct, on_step)]
    listing = direct.call("GET", "/v1/rl/workers", timeout_s=timeout_s)
    if not listing.ok or not isinstance(listing.body, dict):
        raise ControlFailure(
            "no engine here (/model_info: HTTP 404). Routers do not pass weight updates on: give "
            "the engines' own addresses, or start smg with --enable-rl"
        )
    engines = []
    for worker in listing.body.get("workers") or []:
        worker_id = urllib.parse.quote(str(worker["id"]))
        connection = ControlConnection(url, key, f"/v1/rl/workers/{worker_id}/engine")
        engines.append(UpdatingEngine(mask_url(str(worker["url"])), connection, on_step))
    if not engines:
        raise ControlFailure("this smg has no workers")
    return engines


def router_engines(url: str) -> list[str]:
    """The addresses of the engines behind SGLang's router. Raises SyncError when it does not list
    them.
    """
    try:
        answer = ControlConnection(url, None).call("GET", "/workers", timeout_s=ROUTER_TIMEOUT_S)
        if not answer.ok:
            raise ControlFailure(answer.refusal())
        return sorted(str(worker["url"]).rstrip("/") for worker in answer.body["workers"])
    except (ControlFailure, KeyError, TypeError) as e:
        raise SyncError(
            f"{mask_url(url)}/workers does not list its engines: {type(e).__name__}: {e}"
        ) from None
