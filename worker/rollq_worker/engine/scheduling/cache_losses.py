"""How much of what an engine has read it reads again, because its prefix cache has lost it.

Counted is what an episode has added to its first prompt: that one is shared with other episodes, so that it stays.
Replies without any cached token are not counted (the engine may have no cache), and neither is the first one of new
weights (the cache was flushed). It knows nothing of engines.
"""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_TOKENS = 2000
"""Fewer expected tokens tell nothing."""


@dataclass(slots=True)
class History:
    """What an engine has read and sampled of one episode."""

    first: int = 0
    """Length of the first prompt in tokens."""
    known: int = 0
    """Length of the last prompt with its reply; 0 before the first reply."""
    version: str = ""


class CacheLosses:
    """The losses of one engine, from one look at it to the next."""

    def __init__(self) -> None:
        self._expected = 0
        self._lost = 0

    def replied(self, history: History, *, prompt: int, cached: int, sampled: int, version: str) -> None:
        """A reply to a prompt of that many tokens, of which `cached` were found in the cache."""
        if history.known and cached and version == history.version:
            own = history.known - history.first
            self._expected += own
            self._lost += min(own, max(0, history.known - cached))
        history.first = history.first or prompt
        history.known = prompt + sampled
        history.version = version

    def share(self) -> float:
        """The share of the expected tokens that were lost, since it was last asked or since it can be told."""
        if self._expected < FEWEST_TOKENS:
            return 0.0
        share = self._lost / self._expected
        self._expected = self._lost = 0
        return share
