"""The reaper: brings back what was lost and publishes what is due, from a thread in every worker process.

Expired leases and due retries go back to `queued`; whatever is due there is published to the broker and then confirmed.
Publishing is an outbox: a process that dies between the two leaves the job due again. Publishing twice is harmless, the
claim decides. A run whose accounts do not add up is mended.
"""

import logging
import random
import threading
import time
from pathlib import Path
from typing import Any

from rollq.client.celery_publisher import Publisher
from rollq.errors import LedgerError, RollqError, Unwritable
from rollq.ledger.connection import CONNECTION_ERRORS
from rollq.ledger.ledger import Ledger
from rollq.ledger.outage import OutageDetector
from rollq.ledger.run_index import find_runs, runs

log = logging.getLogger(__name__)

TICK_S = 1.0
LIMIT = 100
"""Jobs a call: a script that walks a whole run would stop Redis for everybody."""
CROWD = 10_000
"""Messages at the broker, beyond two for each queued job, from which on none is added: while an engine is away nobody
takes any, be it for days, and every job is published again every ten minutes."""
CHECK_S = 5.0
"""Between two looks at a run's accounts; one that is over is left alone for so long."""


class Reaper:
    """Ticks once a second for every run there is; `alive_file` is touched whenever a tick succeeded (healthchecks)."""

    def __init__(self, connection: Any, publisher: Publisher, alive_file: Path | None = None) -> None:
        self.connection = connection
        self.publisher = publisher
        self.alive_file = alive_file
        self._outages = OutageDetector(connection)
        self._expire_until = 0.0
        self._beaten = float("-inf")
        self._rounds: dict[str, Round] = {}
        self._searched = False
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
            except (RollqError, *CONNECTION_ERRORS) as e:
                log.warning("reaper: %s: %s", type(e).__name__, e)
            except Exception:
                # Lost jobs come back through this thread alone: it must outlive whatever Redis or the broker throws.
                log.exception("reaper failed; trying again in %g s", TICK_S)

    def tick(self) -> int:
        """Reap and publish once. Returns how many jobs were published. One broken run does not hold up the others."""
        published = 0
        backlog = self.publisher.backlog()
        names = self._runs()
        self._rounds = {name: self._rounds.get(name) or Round(Ledger(self.connection, name)) for name in names}
        room = (backlog or 0) <= CROWD + 2 * sum(at.queued for at in self._rounds.values())
        for name, at in self._rounds.items():
            try:
                at.check()
                published += 0 if at.over else self._reap(at.ledger, backlog == 0, room)
            except RollqError as e:
                log.warning("reaper: run %s: %s: %s", name, type(e).__name__, e)
                at.suspect()
        return published

    def _runs(self) -> list[str]:
        """Those of the list, which is made anew when it may have lost some; a run that is missing may be dropped."""
        try:
            names = runs(self.connection)
            whole = self._rounds.keys() <= set(names) and (bool(names) or self._searched)
        except LedgerError as e:
            log.warning("reaper: %s", e)
            whole = False
        self._searched = True
        return names if whole else find_runs(self.connection)

    def _reap(self, ledger: Ledger, empty: bool, room: bool) -> int:
        published = 0
        while due := ledger.reap(LIMIT, empty, self._verdict()):
            if not room:
                break  # they are due again in a few seconds
            sent = self.publisher.publish(due)
            ledger.confirm(sent)
            published += len(sent)
            empty = False
            if len(due) < LIMIT or len(sent) < len(due):
                break
        return published

    def _verdict(self) -> float:
        """Until when leases may expire. One stamp a second, however many runs there are and however long they take."""
        if time.monotonic() - self._beaten >= TICK_S / 2:
            self._expire_until = self._outages.stamp()
            self._beaten = time.monotonic()
        return self._expire_until


class Round:
    """One run on the reaper's round."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.over = False
        self.queued = 0
        self._checked = float("-inf")

    def suspect(self) -> None:
        """Something went wrong: check soon."""
        self._checked = float("-inf")

    def check(self) -> None:
        """Every now and then: whether the run is over, and whether it has to be mended."""
        if time.monotonic() - self._checked < CHECK_S:
            return
        try:
            balance = self.ledger.balance()
            self.over, self.queued = balance.over, balance.queued
            sound = balance.sound
        except Unwritable:
            raise
        except LedgerError as e:
            log.warning("reaper: %s", e)
            sound = self.over = False
        if not sound and (entries := self.ledger.mend()) >= 0:
            log.warning("run %s was damaged: %d entries put right", self.ledger.run, entries)
        self._checked = time.monotonic()
