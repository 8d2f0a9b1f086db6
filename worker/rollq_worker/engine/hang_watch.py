"""Finds an engine that hangs: it accepts requests and never answers.

A long wait alone says nothing (long turns, a long queue, a pause for new weights), so the engine is asked whether it
generates. Only when it does not, twice, are all waits ended; their requests are sent again once it does.
"""

import logging
import threading

from rollq_worker.engine.sglang_client import SGLangEngine

log = logging.getLogger(__name__)

LOOK_S = 5.0
SLOW_S = 60.0
"""A request that takes longer makes one ask."""
SILENCES = 2
"""Questions in a row without an answer that make a hang."""


class EngineWatch:
    """A thread that looks at the engine's oldest request now and then."""

    def __init__(self, engine: SGLangEngine) -> None:
        self._engine = engine
        self._silences = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-engine-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _loop(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
                self._engine.rest()
            except Exception:
                # Nobody else notices an engine that hangs: this thread must outlive whatever one look throws.
                log.exception("looking at the engine failed; trying again in %g s", LOOK_S)

    def look(self) -> None:
        """Ask the engine if a request is slow, and give it up if it has been silent."""
        if not self._engine.available or self._engine.waiting_s() < SLOW_S or self._engine.generates():
            self._silences = 0
            return
        self._silences += 1
        log.warning("the engine does not answer, time %d", self._silences)
        if self._silences >= SILENCES:
            self._silences = 0
            self._engine.give_up()
