"""How many episodes of a process one engine may have: additive increase, multiplicative decrease.

Chiu and Jain (1989) show that this rule brings processes that share an engine, and know nothing of each other, to equal
shares. What is limited is episodes, not requests: an episode between two turns has its history in the engine's prefix
cache, and too many of them evict each other's, so that each turn reads its whole history again (arXiv 2601.22705).

The invariant: the limit stays between 1 and the ceiling. It knows no clock and no threads; `observe` is called once for
every look at the engine.
"""

from __future__ import annotations

from rollq_worker.engine.scheduling.engine_load import EngineLoad

DECREASE = 0.8
"""The part of the episodes that stays when the engine has too many."""
INCREASE = 1 / 64
"""The part of the ceiling by which the limit grows when the engine could take more, at least one episode. It must not
depend on the limit itself, or shares would not become equal."""
LONGEST_QUEUE = 0.1
"""The engine's queue, as a part of what it runs, from which on it has too many. A short queue keeps it busy."""
HIGHEST_USAGE = 0.8
"""Share of the KV cache held by running requests, from which on it has too many. In the rest are the histories of
episodes between two turns, and what running requests will grow by."""
PATIENCE = 2
"""Looks at the engine for which a decrease is left to work, once no more episodes than allowed are there."""


class ConcurrencyLimit:
    """The limit of one engine in one process. It starts at the ceiling, and stays there if the engine tells no load."""

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._limit = float(ceiling)
        self._increase = max(1.0, ceiling * INCREASE)
        self._patience = 0

    @property
    def value(self) -> int:
        return int(self._limit)

    def lift(self) -> None:
        """The engine does not tell its load."""
        self._limit = float(self._ceiling)

    def observe(self, load: EngineLoad, *, held: int) -> None:
        """Adapt to what was seen since the last call, with that many episodes on the engine."""
        if load.paused or held > self.value:
            return  # a pause says nothing, and a decrease that has not worked yet must not be followed by another
        if self._patience:
            self._patience -= 1
        elif is_overloaded(load):
            self._limit = max(1.0, min(self._limit, held) * DECREASE)
            self._patience = PATIENCE
        elif held == self.value:  # a limit that is not reached says nothing about a higher one
            self._limit = min(self._ceiling, self._limit + self._increase)


def is_overloaded(load: EngineLoad) -> bool:
    """Whether fewer episodes would serve the engine better."""
    queue = load.waiting > max(1.0, load.running * LONGEST_QUEUE)
    return queue or load.retracted > 0 or load.token_usage >= HIGHEST_USAGE
