"""Renews the holds of one consumer in the background, for as long as its process lives."""

import logging
import threading
from collections.abc import Callable, Sequence

log = logging.getLogger("rollq")

RENEW_RETRY_S = 1.0
"""Seconds between two tries to renew while Redis is away. After an outage, Redis keeps holds for a
few seconds only (rollq.ledger.constants.GRACE_S).
"""


class HoldRenewal:
    """Renews holds in a daemon thread, three times in each hold.

    `renew` takes the tokens of all holds and returns those that are lost.
    """

    def __init__(self, renew: Callable[[Sequence[str]], Sequence[str]], hold_s: float) -> None:
        self._renew = renew
        self._hold_s = hold_s
        self._groups: dict[str, int] = {}
        """Groups in each batch, by its token."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def groups(self) -> int:
        """Groups whose holds are renewed."""
        with self._lock:
            return sum(self._groups.values())

    def set(self, token: str, groups: int) -> None:
        """Renews this batch's hold from now on; it has that many groups."""
        with self._lock:
            self._groups[token] = groups
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rollq-holds", daemon=True)
                self._thread.start()

    def drop(self, token: str) -> bool:
        """Stops renewing the hold of this batch: it was acknowledged, rejected or lost. Returns
        whether it was renewed.
        """
        with self._lock:
            return self._groups.pop(token, None) is not None

    def close(self) -> list[str]:
        """Stops renewing. Returns the tokens of the holds that are left."""
        self._stop.set()
        with self._lock:
            return list(self._groups)

    def _run(self) -> None:
        usual_s = self._hold_s / 3
        retry_s = min(usual_s, RENEW_RETRY_S)
        pause_s, was_reachable = usual_s, True
        while not self._stop.wait(pause_s):
            with self._lock:
                tokens = list(self._groups)
            try:
                lost = self._renew(tokens) if tokens else []
            except Exception as e:  # whatever Redis raises, the next try may be in time
                if was_reachable:
                    log.warning("cannot renew holds, trying again: %s: %s", type(e).__name__, e)
                pause_s, was_reachable = retry_s, False
                continue
            pause_s, was_reachable = usual_s, True
            if lost:
                self._stop.wait(retry_s)  # its caller may have acknowledged the batch just now
            for token in filter(self.drop, lost):
                log.warning(
                    "a consumer was out of touch for too long, or another has its name: %s is lost",
                    token,
                )
