"""How much an engine takes: the length of its context and the longest prompt, as it reports them or refuses more.

Unknown is very much: a server that is asked for too much says so, and its refusal names the limit.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rollq_worker.engine.http import NoAnswer

log = logging.getLogger(__name__)

UNKNOWN = 2**30
RETRY_S = 5.0
"""How long a failed look-up stands."""


@dataclass(frozen=True, slots=True)
class Limits:
    """In tokens. SGLang refuses prompt + max_new_tokens > `context` and prompts of `prompt` or more tokens."""

    context: int = UNKNOWN
    prompt: int = UNKNOWN
    told: bool = False
    """The engine says so of itself."""

    def room(self, prompt: int) -> int:
        """How many tokens may follow a prompt of that many tokens."""
        return max(0, self.context - prompt) if prompt < self.prompt else 0

    def shortened(self, limit: int) -> "Limits":
        """The same with both no longer than `limit`, which a refusal named."""
        return replace(self, context=min(self.context, limit), prompt=min(self.prompt, limit))


def read_limits(get: Callable[[str], object]) -> Limits:
    """Ask the engine. `get` returns the JSON at a path, or None where there is none (behind a router)."""
    info = get("/server_info")
    info = info if isinstance(info, dict) else {}
    prompt, context = _length(info.get("max_req_input_len")), _length(info.get("context_length"))
    if context is None:  # only set when the server was started with --context-length
        models = get("/v1/models")
        data = models.get("data") if isinstance(models, dict) else None
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        context = _length(first.get("max_model_len"))
    return Limits(context=context or UNKNOWN, prompt=prompt or UNKNOWN, told=bool(context or prompt))


def _length(said: object) -> int | None:
    """None for what is no length: with a context of 0, every episode would end by it, graded."""
    return said if type(said) is int and said > 0 else None


class KnownLimits:
    """What one process knows of its engine's limits, for all threads. Looked up when first needed."""

    def __init__(self, get: Callable[[str], object]) -> None:
        self._get = get
        self._lock = threading.Lock()
        self._known: Limits | None = None
        self._ask_at = 0.0  # monotonic time from which a look-up is worth while

    def now(self) -> Limits:
        if self._known is None:
            with self._lock:
                if self._known is None and time.monotonic() >= self._ask_at:
                    try:
                        self._known = read_limits(self._get)
                    except NoAnswer as e:
                        log.debug("the engine's limits are unknown: %s", e)
                        self._ask_at = time.monotonic() + RETRY_S
        return self._known or Limits()

    def forget(self) -> None:
        """It may be another engine now."""
        with self._lock:
            self._known, self._ask_at = None, 0.0

    def learn(self, limit: int, asked: int) -> bool:
        """Take over the limit that a refusal of `asked` tokens named. False when that changes nothing about it.

        An engine that tells its limits itself is believed: one odd refusal must not shorten every episode.
        """
        with self._lock:
            known = self._known or Limits()
            if not 0 < limit <= asked:
                return False
            if limit >= (least := min(known.context, known.prompt)):
                return least < asked  # another thread has learnt it meanwhile
            if known.told:
                return False
            self._known = known.shortened(limit)
        return True
