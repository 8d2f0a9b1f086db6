"""How much an engine takes: the length of its context and the longest prompt, as it reports them.

Unknown is very much: a server that is asked for too much says so, and its refusal names the limit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

UNKNOWN = 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """In tokens. SGLang refuses prompt + max_new_tokens > `context` and prompts of `prompt` or more tokens."""

    context: int = UNKNOWN
    prompt: int = UNKNOWN

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
    prompt, context = info.get("max_req_input_len"), info.get("context_length")
    if not isinstance(context, int):  # only set when the server was started with --context-length
        models = get("/v1/models")
        data = models.get("data") if isinstance(models, dict) else None
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        context = first.get("max_model_len")
    return Limits(
        context=context if isinstance(context, int) else UNKNOWN,
        prompt=prompt if isinstance(prompt, int) else UNKNOWN,
    )
