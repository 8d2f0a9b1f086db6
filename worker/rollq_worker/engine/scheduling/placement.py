"""Chooses the engine that an episode plays on.

A group has an order of the engines, by rendezvous hashing (Thaler and Ravishankar, 1998), and its
episodes go to the first one that has not more than its share: consistent hashing with bounded loads
(Mirrokni, Thorup and Zadimoghaddam, 2016). So siblings find their common prefix in one engine's
cache, all workers choose alike, and no engine queues while another idles. An episode stays where it
began, because its history is in that engine's cache.

The invariant: an episode is on one engine at a time. It knows no clock and no HTTP; it may be used
from all threads.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Sequence

FULL = 1.25
"""Multiple of its share of the episodes that an engine may have before new ones go elsewhere."""
NEVER_FULL = 8
"""So many episodes are never too many for an engine, so that a usual group stays together."""


class EnginePlacement:
    """The episodes of one process and its engines, which are known by their addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._episodes: Counter[str] = Counter()
        """Number of episodes by engine."""
        self._where: dict[str, str] = {}

    def enter(self, episode: str, group: str, fit: Sequence[str]) -> str:
        """Chooses one of the `fit` engines for the episode's next turn."""
        with self._lock:
            url = self._where.get(episode)
            if url is None or url not in fit or self._should_move(url, fit):
                self._leave(episode)
                url = self._where[episode] = self._choose(group, fit)
                self._episodes[url] += 1
            return url

    def leave(self, episode: str) -> None:
        """The episode has ended."""
        with self._lock:
            self._leave(episode)

    def episodes(self, url: str) -> int:
        """Number of episodes on that engine."""
        with self._lock:
            return self._episodes[url]

    def _choose(self, group: str, fit: Sequence[str]) -> str:
        order = sorted(fit, key=lambda url: _weight(url, group), reverse=True)
        bound = self._bound(FULL, fit, 1)
        return next((url for url in order if self._episodes[url] < bound), order[0])

    def _should_move(self, url: str, fit: Sequence[str]) -> bool:
        # Later than for new ones, because it loses its cache.
        return len(fit) > 1 and self._episodes[url] > self._bound(2.0, fit, 0)

    def _bound(self, times: float, fit: Sequence[str], more: int) -> int:
        """So many times an engine's share, if all episodes and `more` were spread over the engines
        that fit.
        """
        share = (sum(self._episodes[url] for url in fit) + more) / len(fit)
        return max(NEVER_FULL, math.ceil(times * share))

    def _leave(self, episode: str) -> None:
        url = self._where.pop(episode, None)
        if url is not None:
            self._episodes[url] -= 1


def _weight(url: str, group: str) -> bytes:
    return hashlib.blake2b(f"{url} {group}".encode(), digest_size=8).digest()
