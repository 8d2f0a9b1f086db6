"""The addresses of a worker's engines. Those in a file or in Redis may change while it runs.

The invariant: a list that cannot be read, or has an entry that is not an address, changes nothing.
It knows nothing of engines.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rollq.errors import LedgerError, SettingsError
from rollq.ledger.workers.engine_addresses import read_list
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.settings import FILE, REDIS

log = logging.getLogger("rollq.worker")

REFRESH_S = 3.0
"""Seconds after which the lists are read again."""


class EngineList:
    """Reads `Settings.engine_urls`, and remembers each list as it could last be read."""

    def __init__(self, sources: Sequence[str], connection: Any) -> None:
        self._sources = sources
        self._connection = connection
        self._last: dict[str, tuple[str, ...]] = {}
        self._failing: set[str] = set()

    def watch(self, update: Callable[[Collection[str]], None]) -> None:
        """Passes all to `update` every few seconds, in a thread, if any of them may change."""
        if any(source.startswith((FILE, REDIS)) for source in self._sources):
            threading.Thread(
                target=self._watch, args=(update,), name="rollq-engine-list", daemon=True
            ).start()

    def read(self) -> list[str]:
        """The addresses now, each once."""
        urls: list[str] = []
        for source in self._sources:
            urls += self._read(source)
        return list(dict.fromkeys(urls))

    def _watch(self, update: Callable[[Collection[str]], None]) -> None:
        while True:
            time.sleep(REFRESH_S)
            try:
                update(self.read())
            except Exception:
                # Nothing else reads the lists, so this thread must survive every error.
                log.exception(
                    "reading the lists of engines failed; trying again in %g s", REFRESH_S
                )

    def _read(self, source: str) -> Collection[str]:
        if not source.startswith((FILE, REDIS)):
            return (source,)
        try:
            self._last[source] = read_list(source, self._connection)
            self._failing.discard(source)
        except (SettingsError, LedgerError, *CONNECTION_ERRORS) as e:
            if source not in self._failing:
                log.warning(
                    "the list of engines %s cannot be read, so it stays as it was: %s", source, e
                )
                self._failing.add(source)
        return self._last.get(source, ())
