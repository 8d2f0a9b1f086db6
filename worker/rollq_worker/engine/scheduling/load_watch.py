"""Looks at how busy the engines are, now and then, in one thread of the process.

An engine is asked only while episodes of this process are on it. One that does not tell its load, such as a router, is
not limited. It knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rollq_worker.engine.scheduling.engine_load import EngineLoad
from rollq_worker.engine.scheduling.placement import EnginePlacement

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Seconds between two looks, before jitter. Other workers look too."""
SILENT_LOOKS = 30
"""Number of looks for which an engine that tells no load is not asked again."""
SLOW_S = 5.0
"""Seconds without a reply to a request after which an engine is asked whether it is paused."""


class Engine(Protocol):
    """What is asked of an engine."""

    @property
    def url(self) -> str: ...

    @property
    def available(self) -> bool: ...

    def longest_wait_s(self) -> float:
        """Seconds that the oldest request has been waiting for its reply."""
        ...

    def paused(self) -> bool:
        """Whether the engine says that it is paused."""
        ...

    def load(self) -> EngineLoad | None:
        """None when it tells none. Raises Exception while it is away."""
        ...


class LoadWatch:
    def __init__(self, engines: Callable[[], Sequence[Engine]], placement: EnginePlacement) -> None:
        """`engines` gives those of this moment."""
        self._engines = engines
        self._placement = placement
        self._silent: dict[str, int] = {}
        self._paused: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-load-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _loop(self) -> None:
        while not self._stop.wait(INTERVAL_S * random.uniform(0.75, 1.25)):
            for engine in self._engines():
                if self._stop.is_set():
                    return
                self.look(engine)

    def is_paused(self, url: str) -> bool:
        """Whether that engine was paused at the last look."""
        return url in self._paused

    def look(self, engine: Engine) -> None:
        """Ask an engine, if there is a reason to, and adapt its limit."""
        asked = engine.available and self._placement.episodes(engine.url) > 0
        if asked and engine.longest_wait_s() >= SLOW_S and engine.paused():
            self._paused.add(engine.url)
        else:
            self._paused.discard(engine.url)
        if not asked:
            return
        if left := self._silent.pop(engine.url, 0):
            self._silent.update({engine.url: left - 1} if left > 1 else {})
            return
        try:
            load = engine.load()
        except Exception as e:
            # Whether the engine is away is for others to find; the limits of the other engines must go on.
            log.debug("the load of %s is not known: %s", engine.url, type(e).__name__)
            return
        if load is None:
            self._silent[engine.url] = SILENT_LOOKS
        self._placement.observe(engine.url, load)
