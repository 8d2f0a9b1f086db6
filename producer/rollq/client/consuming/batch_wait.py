"""A consumer's wait for its next batch: for how long, what is said of it, and whether it is in
vain.
"""

import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

from rollq.client.waits import WaitLog
from rollq.errors import PullTimeout, Unwritable
from rollq.ledger.deliveries import Deliveries, Taken
from rollq.servers.retry import CONNECTION_ERRORS, HOPELESS, RetryLoop

T = TypeVar("T")

BLOCK_S = 4.0
"""Longest wait for a wake-up in one command, less than connection.SOCKET_TIMEOUT_S."""
LOOK_S = 3.0
"""Seconds between two looks while another consumer's groups may come back. Less than
constants.OUTAGE_S, so that a waiting consumer shows that Redis is there.
"""
IDLE_S = 45.0
"""Seconds between two looks otherwise, in case that a wake-up was lost. Less than constants.WAKE_S.
"""
EXHAUSTED_S = 5.0
"""Seconds without any unfinished group after which `next(exact=True)` reports that groups are
missing.
"""


class BatchWait:
    """The wait of one consumer. When one has timed out, and the consumer soon asks again, it goes
    on.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        session: str,
        hold_s: float,
        explain: Callable[[int], str],
        retry: RetryLoop,
    ) -> None:
        """`explain` gets the number of groups that are asked for."""
        self._deliveries = deliveries
        self._session = session
        self._hold_s = hold_s
        self._explain = explain
        self._retry = retry
        self.deadline = inf
        """Time at which the wait times out, on the monotonic clock."""
        self.since = 0.0
        """Time at which the wait began, on Redis's clock. 0.0 before it begins."""
        self._groups = 0
        self._timed_out = -inf
        self._exhausted_since: float | None = None
        """Time since which no group is unfinished, too few are ready, and none was dropped."""
        self._dropped_then = 0
        self._dropped = 0
        """Groups that had been dropped when the last batch came."""
        self._log: WaitLog

    def begin(self, groups: int, timeout: float | None) -> None:
        began = time.monotonic()
        self._groups = groups
        self.deadline = inf if timeout is None else began + timeout
        if began - self._timed_out > LOOK_S:
            self.since = 0.0
            self._exhausted_since = None
            self._log = WaitLog(lambda: self._explain(self._groups))

    def in_time(self, call: Callable[[], T]) -> T:
        """The call's result, once Redis gives it. Raises PullTimeout at the deadline, and HOPELESS
        at once.
        """
        try:
            return self._retry(call, max(0.0, self.deadline - time.monotonic()))
        except HOPELESS:
            raise
        except (Unwritable, *CONNECTION_ERRORS) as e:
            raise PullTimeout(
                f"run {self._deliveries.run}: no batch came within the timeout: {e}"
            ) from e

    def end(self, taken: Taken) -> None:
        """A batch has come."""
        self._dropped = taken.dropped
        self.since = 0.0
        self._timed_out = -inf

    def time_out(self) -> str:
        """Says why no batch has come."""
        why = self._explain(self._groups)
        self._timed_out = time.monotonic()
        return why

    def block(self, taken: Taken, exact: bool) -> None:
        """Waits until there may be groups, or until an exact batch may have to be given up."""
        look_s = min(IDLE_S, self._hold_s)
        may_end = not taken.open and (taken.sealed or exact)
        if taken.others or may_end:
            look_s = LOOK_S
            if taken.ends_s is not None:
                look_s = min(LOOK_S, taken.ends_s + 0.01)
        until = min(self.deadline, time.monotonic() + look_s)
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            self._log.log_when_due()
            if self._deliveries.wait(self._session, min(left_s, BLOCK_S)):
                return

    def is_in_vain(self, taken: Taken, lacking: int) -> bool:
        """True if the batch stays short by so many groups unless more are submitted."""
        if taken.open or taken.ready >= lacking:
            self._exhausted_since = None
            return False
        if taken.sealed:
            return taken.last
        now = time.monotonic()
        if self._exhausted_since is None or taken.dropped != self._dropped_then:
            self._exhausted_since = now
            self._dropped_then = taken.dropped
        is_exhausted = now - self._exhausted_since >= EXHAUSTED_S  # no replacement has come
        return taken.dropped > self._dropped and is_exhausted and not taken.others
