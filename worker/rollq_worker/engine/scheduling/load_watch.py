"""Watches the load of the engines in one thread of the process, and finds those that generate
nothing.

An engine is asked only while episodes of this process are on it. The figures are for people:
nothing is decided by them. It knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.exchange.server import EngineLoad
from rollq_worker.engine.scheduling.placement import EnginePlacement

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Seconds between two looks, before jitter. Other workers look too."""
SLOW_S = 5.0
"""Seconds without a reply to a request after which an engine is asked whether it is paused."""
STALLED_S = 10.0
"""Seconds for which a load stays the same before the engine counts as stalled. On a GPU a step
takes less, and so does a page of the KV cache.
"""
UNANSWERED_S = 4.0
"""Seconds for which an engine answers no question before it counts as stalled: two questions."""


class Idle(StrEnum):
    """Reason why an engine that has requests generates nothing."""

    PAUSED = "paused"
    """The engine reports a pause."""
    STALLED = "stalled"
    """The engine reports no reason. A paused SGLang 0.5.15 looks like one that hangs."""


class LoadWatch:
    def __init__(
        self,
        engines: Callable[[], Sequence[EngineClient]],
        placement: EnginePlacement,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`engines` gives those of this moment."""
        self._engines = engines
        self._placement = placement
        self._silent: dict[str, int] = {}
        self._clock = clock
        self._idle: dict[str, Idle] = {}
        self._loads: dict[str, EngineLoad] = {}
        self._reports: dict[str, tuple[EngineLoad | None, float]] = {}
        """Last report of each engine, None when it did not answer, and the time since when it is
        the same.
        """
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
                try:
                    self.observe(engine)
                except Exception:
                    # the looks at the other engines must go on
                    log.exception("looking at the load of %s failed", engine.name)

    def idle(self, url: str) -> Idle | None:
        """Reason why that engine generated nothing at the last look; None when it may have."""
        return self._idle.get(url)

    def load(self, url: str) -> EngineLoad | None:
        """Last report of that engine; None when it has no episodes, or does not report."""
        return self._loads.get(url)

    def observe(self, engine: EngineClient) -> None:
        """Asks an engine, if there is a reason to."""
        url = engine.url
        if not engine.available or not self._placement.episodes(url):
            self._loads.pop(url, None)
            self._reports.pop(url, None)
            self._idle.pop(url, None)
            return
        self._ask_load(engine)
        idle = self._why_idle(engine)
        if idle is None:
            self._idle.pop(url, None)
        else:
            self._idle[url] = idle

    def _why_idle(self, engine: EngineClient) -> Idle | None:
        if engine.longest_wait_s() < SLOW_S:
            return None
        report, since = self._reports.get(engine.url, (None, math.inf))
        same_s = self._clock() - since
        if report is None and same_s >= 0:  # it would not say either that it is paused
            return Idle.STALLED if same_s >= UNANSWERED_S else None
        if engine.server.is_paused():
            return Idle.PAUSED
        return Idle.STALLED if same_s >= STALLED_S else None

    def _ask_load(self, engine: EngineClient) -> None:
        url = engine.url
        left = self._silent.pop(url, 0)
        if left:
            if left > 1:
                self._silent[url] = left - 1
            return
        asked_at = self._clock()
        try:
            load = engine.server.load()
        except Exception as e:
            # Whether the engine is away is for others to find; the looks at the other engines must
            # go on.
            log.debug("the load of %s is not known: %s", engine.name, type(e).__name__)
            self._record(url, None, asked_at)
            return
        if load is None:
            self._silent[url] = 30  # looks for which it is not asked again
            self._loads.pop(url, None)
        else:
            self._loads[url] = load
        if load is None or not load.shows_progress:
            self._reports.pop(url, None)
        else:
            self._record(url, load, asked_at)

    def _record(self, url: str, report: EngineLoad | None, at: float) -> None:
        if url not in self._reports or self._reports[url][0] != report:
            self._reports[url] = report, at
