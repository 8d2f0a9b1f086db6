"""Watches one engine: finds out that it hangs, and that it is back.

An engine that hangs accepts requests and never answers. A long wait alone proves nothing: turns may
be long, the queue full, the engine paused for new weights. So its scheduler is asked a question.
When it fails twice, all waits are ended. Their requests are sent again, to another engine or to
this one once it generates.
"""

import logging
import threading
import time

from rollq_worker.engine.client import EngineClient

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
AWAY_S = 1.0
"""Seconds between two questions to an engine that is away. Its requests may be elsewhere, so that
only this thread asks.
"""
SLOW_S = 60.0
"""Seconds after which the watch asks the engine about a request."""
FAILURES = 2
"""Number of unanswered questions in a row after which the engine counts as hung."""


class HangWatch:
    """A thread that now and then looks at the request that has waited longest, and asks an engine
    that is away.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-hang-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _loop(self) -> None:
        due = time.monotonic() + INTERVAL_S
        while not self._stop.wait(AWAY_S):
            if self._engine.available and time.monotonic() < due:
                continue
            due = time.monotonic() + INTERVAL_S
            try:
                self.check()
                self._engine.close_idle_connections()
            except Exception:
                # Nothing else notices an engine that hangs, so this thread must survive every
                # error.
                log.exception("looking at the engine at %s failed; trying again", self._engine.name)

    def check(self) -> None:
        """Asks the engine if a request is slow. Gives the engine up when it has failed to answer
        several times.
        """
        if not self._engine.available:
            self._failures = 0
            self._engine.ready()
            return
        is_slow = self._engine.longest_wait_s() >= SLOW_S
        if not is_slow or not self._engine.server.is_hung():
            self._failures = 0
            return
        self._failures += 1
        log.warning("the engine at %s does not answer, time %d", self._engine.name, self._failures)
        if self._failures >= FAILURES:
            self._failures = 0
            self._engine.give_up()
