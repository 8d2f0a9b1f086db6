"""The reaper: brings back what was lost and publishes what is due, from a thread in every worker process.

Expired leases and due retries go back to `queued`; whatever is due there is published to the broker and then confirmed.
Publishing is an outbox: a process that dies between the two leaves the job due again. Publishing twice is harmless, the
claim decides.
"""

import logging
import random
import threading
from pathlib import Path
from typing import Any

from rollq.connection import AWAY
from rollq.errors import RollqError
from rollq.ledger import Ledger
from rollq.publish import Publisher
from rollq.view import runs

log = logging.getLogger(__name__)

TICK_S = 1.0
LIMIT = 100
"""Jobs a call: a script that walks a whole run would stop Redis for everybody."""


class Reaper:
    """Ticks once a second for every run there is; `alive_file` is touched whenever a tick succeeded (healthchecks)."""

    def __init__(self, connection: Any, publisher: Publisher, alive_file: Path | None = None) -> None:
        self.connection = connection
        self.publisher = publisher
        self.alive_file = alive_file
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the tick that is running."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _loop(self) -> None:
        # Workers started together should not all reap in the same instant.
        while not self._stop.wait(TICK_S * random.uniform(0.8, 1.2)):
            try:
                self.tick()
                if self.alive_file is not None:
                    self.alive_file.touch()
            except (RollqError, *AWAY) as e:
                log.warning("reaper: %s: %s", type(e).__name__, e)
            except Exception:
                # Lost jobs come back through this thread alone: it must outlive whatever Redis or the broker throws.
                log.exception("reaper failed; trying again in %g s", TICK_S)

    def tick(self) -> int:
        """Reap and publish once. Returns how many jobs were published. One broken run does not hold up the others."""
        published = 0
        empty = self.publisher.backlog() == 0
        for run in runs(self.connection):
            try:
                published += self._tick(Ledger(self.connection, run), empty)
            except RollqError as e:
                log.warning("reaper: run %s: %s: %s", run, type(e).__name__, e)
        return published

    def _tick(self, ledger: Ledger, empty: bool) -> int:
        published = 0
        while due := ledger.reap(LIMIT, broker_empty=empty):
            sent = self.publisher.publish(due)
            ledger.confirm(sent)
            published += len(sent)
            empty = False
            if len(due) < LIMIT or len(sent) < len(due):
                break
        return published
