"""The episodes of a process on one engine, and those that wait for it.

An episode has a seat from its first turn to its end. When the limit falls below the number of seats, an episode that
begins its next turn gives its seat up, and is among the first to get one back.

The invariant: an episode that waits is granted a seat, in order, as soon as there is one. It knows no clock and no
threads; the lock of `EnginePlacement` guards it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from rollq_worker.engine.scheduling.concurrency_limit import ConcurrencyLimit
from rollq_worker.engine.scheduling.engine_load import EngineLoad

Granted = Callable[[], object]


class Seats:
    def __init__(self, ceiling: int) -> None:
        self.limit = ConcurrencyLimit(ceiling)
        self._held: set[str] = set()
        self._suspended: OrderedDict[str, Granted] = OrderedDict()
        self._new: OrderedDict[str, Granted] = OrderedDict()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._suspended) + len(self._new)

    @property
    def free(self) -> bool:
        """Whether another episode would get a seat at once."""
        return len(self._held) < self.limit.value and not self.waiting

    def is_waiting(self, episode: str) -> bool:
        return episode in self._suspended or episode in self._new

    def take(self, episode: str, granted: Granted) -> bool:
        """Whether the episode may begin its next turn now. If not it waits, and `granted` is called when it may."""
        if episode in self._held:
            if len(self._held) <= self.limit.value:
                return True
            self._held.discard(episode)
            self._suspended[episode] = granted
        elif self.free:
            self._held.add(episode)
            return True
        elif episode not in self._suspended:
            self._new.setdefault(episode, granted)
        return False

    def leave(self, episode: str) -> None:
        """The episode has ended, or goes elsewhere."""
        self._held.discard(episode)
        self._suspended.pop(episode, None)
        self._new.pop(episode, None)
        self._grant()

    def observe(self, load: EngineLoad | None) -> None:
        """Adapt the limit to the engine's load. With None it does not tell."""
        if load is None:
            self.limit.lift()
        else:
            self.limit.observe(load, held=self.held)
        self._grant()

    def _grant(self) -> None:
        while self.waiting and len(self._held) < self.limit.value:
            episode, granted = (self._suspended or self._new).popitem(last=False)
            self._held.add(episode)
            granted()
