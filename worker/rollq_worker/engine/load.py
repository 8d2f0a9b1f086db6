"""The load that an engine reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of one engine, of all its data-parallel ranks together."""

    running: int
    """Requests that it generates for now."""
    waiting: int
    """Requests in its own queue."""
    token_usage: float
    """Share of its KV cache that running requests hold, in the fullest rank, without entries that
    could be evicted.
    """
    used_tokens: int = 0
    """Tokens in its KV cache, which every step of a generation changes; 0 also where it does not
    tell.
    """

    @property
    def shows_progress(self) -> bool:
        """True if a generation that goes on would change it."""
        return self.used_tokens > 0 or self.running == 0
