"""The reaper: brings back lost jobs and publishes what is due, from a thread in every worker process.

Expired leases and due retries go back to `queued`; what is due there is published to the broker and then confirmed.
Publishing is an outbox: if a process dies before it confirms, the job is due again. Publishing twice is harmless,
because a job can be claimed only once.
"""

import logging
import random
import threading
import time
from pathlib import Path
from typing import Any

from rollq.client.celery_publisher import Publisher
from rollq.errors import LedgerError, RollqError, Unwritable
from rollq.ledger.connection import CONNECTION_ERRORS, WARN_EVERY_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.outage import OutageDetector
from rollq.ledger.reader import LedgerReader, runs

log = logging.getLogger(__name__)

TICK_S = 1.0
LIMIT = 100
"""Most jobs in one call, because Redis does nothing else while a script runs."""
MOST_MESSAGES = 10_000
"""Most messages at the broker, beyond two for each queued job. When there are more, no message is added.

While the engine is away, perhaps for days, no worker takes messages, and every job is published again every ten
minutes.
"""
LOOK_EVERY_S = 5.0
"""Seconds between two looks at where a run stands. A run that is over, or cannot be read, is left alone until the next
look."""


class Reaper:
    """Ticks once a second for every run. Touches `alive_file` after each tick that succeeded (for health checks)."""

    def __init__(self, connection: Any, publisher: Publisher, alive_file: Path | None = None) -> None:
        self.connection = connection
        self.publisher = publisher
        self.alive_file = alive_file
        self._outages = OutageDetector(connection)
        self._expire_until = 0.0
        self._stamped = float("-inf")
        self._runs: dict[str, _Run] = {}
        self._warned: dict[str, float] = {}
        """When it last warned of what."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the running tick has ended."""
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
                # Lost jobs come back through this thread alone: it must survive every error of Redis and the broker.
                log.exception("reaper failed; trying again in %g s", TICK_S)

    def tick(self) -> int:
        """Reap and publish once. Returns how many jobs were published. A run that fails does not hold up the others."""
        published = 0
        backlog = self.publisher.backlog()
        self._list_runs()
        room = (backlog or 0) <= MOST_MESSAGES + 2 * sum(run.queued for run in self._runs.values())
        for name, run in self._runs.items():
            try:
                run.look()
                published += 0 if run.resting else self._reap(run.ledger, backlog == 0, room)
            except RollqError as e:
                self._warn(f"run {name}", e)
                run.resting = not isinstance(e, Unwritable)
        return published

    def _list_runs(self) -> None:
        try:
            names = runs(self.connection)
        except LedgerError as e:
            self._warn("the list of runs (the runs of this worker go on)", e)
            return
        self._runs = {name: self._runs.get(name) or _Run(self.connection, name) for name in names}

    def _warn(self, what: str, error: RollqError) -> None:
        """Log the error, but not at every tick: it lasts until a person repairs the data."""
        what, now = f"{what}: {type(error).__name__}", time.monotonic()
        if now - self._warned.get(what, float("-inf")) >= WARN_EVERY_S:
            self._warned[what] = now
            log.warning("reaper: %s: %s", what, error)

    def _reap(self, ledger: Ledger, empty: bool, room: bool) -> int:
        published = 0
        while due := ledger.reap(LIMIT, empty, self._expiry()):
            if not room:
                break  # they are due again in a few seconds
            sent = self.publisher.publish(due)
            ledger.confirm(sent)
            published += len(sent)
            empty = False
            if len(due) < LIMIT or len(sent) < len(due):
                break
        return published

    def _expiry(self) -> float:
        """The time until which leases may expire. The stamp is renewed once a second, even when a tick over many runs
        takes long."""
        if time.monotonic() - self._stamped >= TICK_S / 2:
            self._expire_until = self._outages.stamp()
            self._stamped = time.monotonic()
        return self._expire_until


class _Run:
    """The reaper's memory of one run."""

    def __init__(self, connection: Any, name: str) -> None:
        self.ledger = Ledger(connection, name)
        self.resting = False
        """Left alone until the next look."""
        self.queued = 0
        self._reader = LedgerReader(connection, name)
        self._looked = float("-inf")

    def look(self) -> None:
        """Find out, every LOOK_EVERY_S seconds, whether the run has anything to reap. Raises LedgerError."""
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        standing = self._reader.standing()
        self.queued = standing.queued
        self.resting = standing.sealed and not standing.queued and not standing.leased
