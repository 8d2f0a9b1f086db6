"""Renews the holds of one consumer in the background, for as long as its process lives."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger("rollq")

RENEW_RETRY_S = 1.0
"""Seconds between two tries to renew while Redis is away. After an outage, Redis keeps holds for a
few seconds only (rollq.ledger.constants.GRACE_S).
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    groups: int
    """Number of groups in the batch."""


class HoldRenewal:
    """Renews holds in a daemon thread, three times in each hold.

    `renew` takes the tokens of all holds and returns those that are lost.
    """

    def __init__(self, renew: Callable[[Sequence[str]], Sequence[str]], hold_s: float) -> None:
        self._renew = renew
        self._hold_s = hold_s
        self._holds: dict[str, _Hold] = {}
        """Holds by the token of their batch."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def groups(self) -> int:
        """Groups whose holds are renewed."""
        with self._lock:
            return sum(hold.groups for hold in self._holds.values())

    def set(self, token: str, groups: int) -> None:
        """Renews this batch's hold from now on; it has that many groups."""
        with self._lock:
            self._holds[token] = _Hold(groups)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rollq-holds", daemon=True)
                self._thread.start()

    def drop(self, token: str) -> bool:
        """Stops renewing the hold of this batch: it was acknowledged, rejected or lost. Returns
        whether it was renewed.
        """
        with self._lock:
            return self._holds.pop(token, None) is not None

    def close(self) -> list[str]:
        """Stops renewing. Returns the tokens of the holds that are left."""
        self._stop.set()
        with self._lock:
            return list(self._holds)

    def _run(self) -> None:
        usual_s = min(self._hold_s / 3, threading.TIMEOUT_MAX)
        retry_s = min(usual_s, RENEW_RETRY_S)
        pause_s, was_reachable = usual_s, True
        while not self._stop.wait(pause_s):
            with self._lock:
                renewed = dict(self._holds)
            try:
                lost = self._renew(list(renewed)) if renewed else []
            except Exception as e:  # whatever Redis raises, the next try may be in time
                if was_reachable:
                    log.warning("cannot renew holds, trying again: %s: %s", type(e).__name__, e)
                pause_s, was_reachable = retry_s, False
                continue
            pause_s, was_reachable = usual_s, True
            if lost:
                self._stop.wait(retry_s)  # its caller may have acknowledged the batch just now
            for token in lost:
                if self._lose(token, renewed[token]):
                    log.warning(
                        "a consumer was out of touch for too long, or another has its name: %s is "
                        "lost",
                        token,
                    )

    def _lose(self, token: str, hold: "_Hold") -> bool:
        """Stops renewing this hold. Returns whether it was renewed: its batch may have been taken
        again meanwhile, which is another hold of the same token.
        """
        with self._lock:
            is_renewed = self._holds.get(token) is hold
            if is_renewed:
                del self._holds[token]
            return is_renewed
