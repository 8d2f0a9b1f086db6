"""Which engine an episode plays on, and whether it may begin its next turn there.

A group has an order of the engines, by rendezvous hashing (Thaler and Ravishankar, 1998), and its episodes go to the
first one that has not more than its share: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam,
2016). So siblings find their common prefix in one engine's cache, all workers choose alike, and no engine queues while
another idles. An episode stays where it began, because its history is in that engine's cache.

The invariant: an episode is on one engine at a time, and no engine has more episodes in its turns than its limit. It
knows no clock and no HTTP; it may be used from all threads.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

from rollq_worker.engine.scheduling.engine_load import EngineLoad
from rollq_worker.engine.scheduling.seats import Granted, Seats

FULL = 1.25
"""How many times its share of the episodes an engine may have before new ones go elsewhere."""
OVERFULL = 2.0
"""The same for episodes that are there already: they would lose their cache."""
NEVER_FULL = 8
"""So many episodes are never too many for an engine, so that a usual group stays together."""


class Usage(NamedTuple):
    """How one engine is used."""

    episodes: int
    """Episodes of this process that have a seat."""
    limit: int
    """Most of them."""
    waiting: int
    """Episodes of this process that wait for a seat."""
    load: EngineLoad | None
    """What the engine said last; None when it has no episodes, or does not tell."""


class _Engine:
    def __init__(self, ceiling: int) -> None:
        self.seats = Seats(ceiling)
        self.episodes = 0
        """Those that have a seat or wait for one."""
        self.load: EngineLoad | None = None


class EnginePlacement:
    """The episodes of one process and its engines, which are known by their addresses. `ceiling` is the most episodes
    that an engine may have."""

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._lock = threading.Lock()
        self._engines: dict[str, _Engine] = {}
        self._where: dict[str, str] = {}

    def enter(self, episode: str, group: str, fit: Sequence[str], granted: Granted) -> tuple[str, bool]:
        """The episode begins a turn on one of the `fit` engines: on which one, and whether now.

        If not now, `granted` is called when it may. Calling again meanwhile moves it to an engine that has a seat.
        """
        with self._lock:
            url = self._where.get(episode)
            if url is None or url not in fit or self._should_move(episode, url, fit):
                url = self._choose(group, fit)
                if self._where.get(episode) != url:
                    self._move(episode, url)
            return url, self._engines[url].seats.take(episode, granted)

    def leave(self, episode: str) -> None:
        """The episode has ended, or its next turn begins elsewhere."""
        with self._lock:
            self._leave(episode)

    def observe(self, url: str, load: EngineLoad | None) -> None:
        """The engine at that address is as busy as that. With None it does not tell, and is not limited."""
        with self._lock:
            if (engine := self._engines.get(url)) is not None:
                engine.load = load
                engine.seats.observe(load)

    def has_seat(self, fit: Sequence[str]) -> bool:
        """Whether a new episode could begin at once on any of the `fit` engines."""
        with self._lock:
            return any(self._engine(url).seats.free for url in fit)

    def episodes(self, url: str) -> int:
        """How many episodes are on that engine, or wait for it."""
        with self._lock:
            return self._engine(url).episodes

    def limit(self, url: str) -> int:
        """How many episodes may be in their turns on that engine."""
        with self._lock:
            return self._engine(url).seats.limit.value

    def usage(self, url: str) -> Usage:
        """How the engine at that address is used, for people."""
        with self._lock:
            engine = self._engine(url)
            seats, load = engine.seats, engine.load if engine.episodes else None
            return Usage(seats.held, seats.limit.value, seats.waiting, load)

    def _engine(self, url: str) -> _Engine:
        if url not in self._engines:
            self._engines[url] = _Engine(self._ceiling)
        return self._engines[url]

    def _choose(self, group: str, fit: Sequence[str]) -> str:
        order = sorted(fit, key=lambda url: _weight(url, group), reverse=True)
        share = self._share(fit, 1)
        below = [url for url in order if self._engine(url).episodes < _bound(FULL, share[url])] or order
        return next((url for url in below if self._engine(url).seats.free), below[0])

    def _should_move(self, episode: str, url: str, fit: Sequence[str]) -> bool:
        if len(fit) == 1:
            return False
        engine = self._engine(url)
        if engine.seats.is_waiting(episode):
            return any(self._engine(other).seats.free for other in fit)
        return engine.episodes > NEVER_FULL and engine.episodes > _bound(OVERFULL, self._share(fit, 0)[url])

    def _share(self, fit: Collection[str], more: int) -> dict[str, float]:
        """How many episodes each engine would have, if all of them and so many more were there by the limits."""
        engines = {url: self._engine(url) for url in fit}
        limits = sum(engine.seats.limit.value for engine in engines.values())
        each = (sum(engine.episodes for engine in engines.values()) + more) / limits
        return {url: engine.seats.limit.value * each for url, engine in engines.items()}

    def _move(self, episode: str, url: str) -> None:
        self._leave(episode)
        self._engine(url).episodes += 1
        self._where[episode] = url

    def _leave(self, episode: str) -> None:
        if (url := self._where.pop(episode, None)) is not None:
            engine = self._engines[url]
            engine.episodes -= 1
            engine.seats.leave(episode)


def _bound(times: float, share: float) -> int:
    return max(NEVER_FULL, math.ceil(times * share))


def _weight(url: str, group: str) -> bytes:
    return hashlib.blake2b(f"{url} {group}".encode(), digest_size=8).digest()
