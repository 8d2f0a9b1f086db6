"""What one consumer holds, kept for it by a background thread until it acknowledges or leaves."""

import logging
import threading

from rollq.errors import NotHeld
from rollq.ledger.ledger import HOLD_S, Ledger

log = logging.getLogger("rollq")

RETRY_S = 1.0
"""Between two tries while Redis is away or takes no writes: what ended meanwhile is kept for a few seconds only once it
is back (pulse.GRACE_S)."""


class Holds:
    """The tokens of batches that are out. Dies with its process, and the groups go to the next consumer."""

    def __init__(self, ledger: Ledger, hold_s: float = HOLD_S) -> None:
        self._ledger = ledger
        self._hold_s = hold_s
        self._groups: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def groups(self) -> int:
        """How many groups are held."""
        with self._lock:
            return sum(self._groups.values())

    def add(self, token: str, groups: int) -> None:
        with self._lock:
            self._groups[token] = groups
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name="rollq-holds", daemon=True)
                self._thread.start()

    def drop(self, token: str) -> None:
        """It is acknowledged, or lost."""
        with self._lock:
            self._groups.pop(token, None)

    def close(self) -> None:
        """Renew nothing any more; what is held runs out."""
        self._stop.set()

    def _renew(self) -> None:
        pause, well = self._hold_s / 3, True
        while not self._stop.wait(pause):
            was_well, well = well, True
            with self._lock:
                tokens = list(self._groups)
            for token in tokens:
                try:
                    self._ledger.extend(token, self._hold_s)
                except NotHeld as e:
                    log.warning("a batch was out of touch for too long: %s", e)
                    self.drop(token)
                except Exception as e:
                    # Whatever Redis throws, the next round may be in time.
                    if was_well and well:
                        log.warning("cannot renew a hold, trying again: %s: %s", type(e).__name__, e)
                    well = False
            pause = self._hold_s / 3 if well else min(self._hold_s / 3, RETRY_S)
