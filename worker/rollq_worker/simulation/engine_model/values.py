"""What goes into and comes out of the model of an engine: its shape, requests, their ends, its load."""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields

from rollq.errors import SettingsError
from rollq_worker.simulation.engine_model.prefix_cache import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """How long a step takes, and how much fits. Raises SettingsError.

    A step takes `step_s` + `prefill_token_s` x new tokens + `running_s` x requests + `kv_token_s` x tokens in their
    contexts + `attended_pair_s` x pairs of a new token and a token before it.
    """

    step_s: float
    """Seconds of each step, whatever is in it."""
    prefill_token_s: float
    """Seconds per token of a prompt that is not cached."""
    running_s: float
    """Seconds per request in a step."""
    kv_token_s: float
    """Seconds per token in the contexts that a step reads."""
    attended_pair_s: float = 0.0
    """Seconds per pair of a prefilled token and a token before it: the attention of long prompts."""
    kv_tokens: int
    """Tokens that memory holds: those of running requests and cached ones."""
    max_running: int
    """Most requests that run at once."""
    chunk_tokens: int
    """Most new tokens of a prefill step."""
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not 0.0 <= value < float("inf"):
                raise SettingsError(f"{field.name} of an engine's shape is a number of seconds, not {value}")
            if field.name in ("kv_tokens", "max_running", "chunk_tokens") and value < 1:
                raise SettingsError(f"{field.name} of an engine's shape is a number above 0, not {value}")
        if not self.step_s:
            raise SettingsError("step_s of an engine's shape is above 0, or time would stand still")

    def prefill_s(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of a prefill step. A row is a request: tokens computed before, and new ones."""
        total = self.step_s
        for before, new in rows:
            total += self.running_s + self.prefill_token_s * new + self.kv_token_s * (before + new)
            total += self.attended_pair_s * new * (before + new / 2)
        return total

    def decode_s(self, steps: int, running: int, context: int) -> float:
        """Seconds of some decode steps. Each reads one token more per request than the one before; the first reads
        `context`."""
        first = self.step_s + self.running_s * running + self.kv_token_s * context
        return steps * first + self.kv_token_s * running * (steps * (steps - 1) // 2)

    def decode_steps_within(self, seconds: float, running: int, context: int) -> int:
        """The most decode steps that end within `seconds`."""
        if seconds <= 0:
            return 0
        growth = self.kv_token_s * running
        half = self.decode_s(1, running, context) - growth / 2
        steps = int(2 * seconds / (half + math.sqrt(half * half + 2 * growth * seconds)))
        while steps and self.decode_s(steps, running, context) > seconds:
            steps -= 1
        while self.decode_s(steps + 1, running, context) <= seconds:
            steps += 1
        return steps


@dataclass(slots=True)
class Request:
    """One turn."""

    rid: str
    prefix: Chain
    """The prompt as pairs of a key and a number of tokens; equal chains share their cache."""
    new_key: Hashable
    """The sampled tokens join the cache under this key, after the prefix."""
    output_tokens: int
    """Tokens that it samples. With 0 it ends with its prefill."""
    max_new_tokens: int | None = None
    """The limit that the client set, which the engine plans with; None: `output_tokens`."""
    stored: Chain | None = None
    """The chain that is cached in the end, where prompt and sampled tokens are cut into pairs otherwise than `prefix`
    and `new_key` are; it has the same tokens."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request."""

    rid: str
    at: float
    cached_tokens: int
    """Tokens of the prompt that were cached when it was first admitted."""
    queued_s: float
    """Seconds from its submission to its first admission."""
    prefill_s: float
    """Seconds from there to its first token."""
    retractions: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is."""

    waiting: bool
    """Whether it is in the queue, for the first time or after a retraction."""
    sampled: int
    cached_tokens: int
    retractions: int


@dataclass(frozen=True, slots=True)
class Load:
    """What /v1/loads tells, and counters since the start."""

    running: int
    waiting: int
    used_tokens: int
    """Tokens that running requests hold; what is only cached does not count."""
    token_usage: float
    """`used_tokens` as a share of all, 0 to 1."""
    retractions: int
    busy_s: float
    prompt_tokens: int
    """Tokens of the prompts of all admitted requests."""
    cached_tokens: int
    """Those of them that were cached."""
    sampled_tokens: int
