"""The control side of one server: what it serves, pause, new weights, checksum, continue.

Every call has a time limit, and ends in an answer or in a ControlFailure with a reason that holds
no key. `sglang` and `vllm` have the paths and shapes. Standard library only. It knows nothing of
other engines.
"""

import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

log = logging.getLogger("rollq")

CONTROL_TIMEOUT_S = 60.0
"""Limit of a call that loads nothing. A pause that aborts returns when the last request has ended.
"""
NOT_FOUND = 404


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
            if isinstance(message, dict):  # vLLM's {"error": {"message": ...}}
                message = message.get("message")
        words = " ".join(str(message or "").split())
        return f"HTTP {self.status} {words[:300]}".rstrip()


@dataclass(frozen=True, slots=True)
class Serving:
    """The weights that an engine says it serves."""

    version: str
    """Name of the weights."""
    path: str | None
    """The folder of its weights, without a slash at the end. None on vLLM, which does not name it.
    """
    paused: bool | None
    """None for a server without `/ready`, which cannot say."""

    def holds(self, version: str, path: str | None) -> bool:
        """True if these are that version's weights, from that folder as far as the server says."""
        return self.version == version and self.path in (None, path)


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
        except (OSError, UnicodeError, http.client.HTTPException) as e:
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
    except (ValueError, RecursionError):
        return Answer(status, raw.decode("utf-8", "replace"))


class UpdatingEngine(ABC):
    """One engine during one weight update. `step` is what it is doing.

    All methods raise ControlFailure.
    """

    resume_path: str
    adapter_path: str
    """Path in front of /load_lora_adapter and /unload_lora_adapter."""

    def __init__(
        self,
        url: str,
        connection: ControlConnection,
        on_step: Callable[[str, str], None] | None = None,
    ) -> None:
        self.url = url
        self.server = ""
        """The version of the server's software."""
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
        """The body of a 200."""
        return self._body(path, self._connection.call("POST", path, body, timeout_s))

    def _get(self, path: str, timeout_s: float = CONTROL_TIMEOUT_S) -> Any:
        return self._body(path, self._connection.call("GET", path, timeout_s=timeout_s))

    def _body(self, path: str, answer: Answer) -> Any:
        if not answer.ok:
            raise ControlFailure(self._refusal(path, answer))
        return answer.body

    def _refusal(self, path: str, answer: Answer) -> str:
        return answer.refusal()

    def inspect(self) -> Serving:
        """The weights that it serves now."""
        self.describe()
        return self.serving()

    def describe(self) -> None:
        """Finds `server` and `shape`."""
        self.begin("look")
        self._describe()

    @abstractmethod
    def _describe(self) -> None: ...

    @abstractmethod
    def serving(self, timeout_s: float = CONTROL_TIMEOUT_S) -> Serving:
        """The weights that it serves, in two small calls."""

    def pause(self, mode: PauseMode, serving: Serving) -> None:
        self.begin("pause")
        self._mode = mode
        self.paused_at = time.monotonic()
        self._pause(serving)

    @abstractmethod
    def _pause(self, serving: Serving) -> None: ...

    @abstractmethod
    def load(self, path: str, version: str, timeout_s: float) -> None:
        """Loads new weights from disk, under this version."""

    def name_version(self, version: str) -> None:
        """Names the version of weights that came by another way. Requests stay as they are."""
        self.begin("update")
        self._do("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    def adapters(self) -> dict[str, str]:
        """The folders of the LoRA adapters that are loaded, without a slash at the end, by the
        engine's names of them.
        """
        models = self._get("/v1/models")
        try:
            loaded = [model for model in models["data"] if model.get("parent")]
            return {str(model["id"]): str(model["root"]).rstrip("/") for model in loaded}
        except (TypeError, KeyError, AttributeError):
            raise ControlFailure("/v1/models lists no models: is this an engine?") from None

    def load_adapter(self, name: str, path: str, timeout_s: float) -> None:
        """Loads a LoRA adapter while requests go on."""
        self.begin("load")
        body = {"lora_name": name, "lora_path": path}
        self._do(f"{self.adapter_path}/load_lora_adapter", body, timeout_s)

    def unload_adapter(self, name: str, timeout_s: float) -> None:
        """Unloads a LoRA adapter. Requests that use it end with it; SGLang waits for them."""
        self.begin("unload")
        self._do(f"{self.adapter_path}/unload_lora_adapter", {"lora_name": name}, timeout_s)

    @abstractmethod
    def checksum(self, timeout_s: float) -> str | None:
        """Checksum of all its tensors. None where the server has no checker, or one that does not
        work.
        """

    def flush(self) -> None:
        """Empties the cache that the old weights have left."""
        if self._mode is not PauseMode.IN_PLACE:
            self.begin("flush")
            self._flush()

    @abstractmethod
    def _flush(self) -> None: ...

    def resume(self) -> float:
        """Lets the engine generate again. Returns the seconds of the pause."""
        self.begin("continue")
        self._do(self.resume_path, {})
        if self.paused_at is None:
            return 0.0
        return time.monotonic() - self.paused_at
