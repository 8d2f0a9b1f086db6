"""An attempt: one claimed job, which the agent loop sees as its journal.

Every append renews the lease. The ledger only takes writes of attempts in its lease set, so an attempt that lost its
lease can write nothing more. It knows nothing of what is played or of other attempts.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rollq.errors import ContractError, FailureClass, Fenced, JournalConflict, LedgerError, Unwritable
from rollq.ledger.connection import RetryLoop
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.token_stats import TokenStats
from rollq.trajectory import Event, Header, Trajectory
from rollq.wire.codec import decode_event, decode_header, encode_event, encode_header
from rollq_worker.failures import DeadlineExceeded, Drained
from rollq_worker.process.time_limits import TimeLimits

log = logging.getLogger(__name__)

T = TypeVar("T")

SHORT_WAIT_S = 1.0
"""Seconds. A call to Redis that takes longer stops the deadline's clock, because Redis was away."""


class Attempt:
    """One claimed job as its journal. The heartbeat's thread watches it through `Leases`."""

    def __init__(self, ledger: Ledger, claim: Claim, draining: threading.Event, outage_s: Callable[[], float]) -> None:
        self.ledger = ledger
        self.job = claim.job
        self.number = claim.attempt
        self.time_limits = TimeLimits()
        self.lost = threading.Event()
        """Set once the lease is lost."""
        self.abandoned_at: float | None = None
        """Monotonic time at which it was failed while its thread was in foreign code."""
        self._blobs: list[bytes] = []
        self._draining = draining
        self._outage_s = outage_s
        self._outage_before = outage_s()
        self._redis_away_s = 0.0
        self._calling_since: float | None = None
        """Since when its thread has been in a call to Redis."""
        self._retry = RetryLoop(wait=self._pause, reconnect=True)
        self._started = time.monotonic()

    @property
    def stopped_s(self) -> float:
        """Seconds for which the deadline's clock stood still, because the engine or Redis was away."""
        since = self._calling_since
        waiting = 0.0 if since is None else time.monotonic() - since
        return (
            self._outage_s() - self._outage_before + self._redis_away_s + (waiting if waiting > SHORT_WAIT_S else 0.0)
        )

    @property
    def left_s(self) -> float:
        """Seconds to the job's deadline."""
        return self.job.budget.deadline_s + self.stopped_s - (time.monotonic() - self._started)

    @property
    def overdue(self) -> bool:
        return self.left_s < 0

    def open(self, header: Header) -> None:
        """Write the header, the first blob of every journal."""
        self._append(encode_header(header, self.job.id))

    def resume(self) -> tuple[Header, list[Event]]:
        """Take over an earlier attempt's journal: its header and its events. Raises ContractError."""
        self._blobs = self._call(lambda: self.ledger.journal(self.job.id))
        if not self._blobs:
            raise ContractError(f"{self.job.id}: its journal has gone since the claim")
        header = decode_header(self._blobs[0], self.job.id)
        return header, [decode_event(blob, self.job.id) for blob in self._blobs[1:]]

    def append(self, event: Event) -> None:
        self._append(encode_event(event, self.job.id))

    def complete(self, trajectory: Trajectory, token_stats: TokenStats) -> None:
        """Append the closing event and end the job, in one step."""
        closed = trajectory.closed
        if closed is None:
            raise ContractError(f"{self.job.id}: the trajectory is not closed")
        blob = encode_event(closed, self.job.id)
        end = partial(
            self.ledger.complete,
            self.job.id,
            self.number,
            len(self._blobs),
            blob,
            turns=trajectory.turns,
            sampled_tokens=trajectory.sampled_tokens,
            total_tokens=len(trajectory.tokens),
            token_stats=token_stats,
        )
        self._write(len(self._blobs), end)

    def fail(self, failure: FailureClass, reason: str, *, final: bool = False) -> str:
        """Fail the attempt. Returns the job's state then: `queued` or `dead`."""
        return self._call(lambda: self.ledger.fail(self.job.id, self.number, failure, reason, final=final)).status

    def abandon(self, failure: FailureClass, reason: str) -> None:
        """Fail the attempt while its thread is in foreign code. What the thread writes later is refused."""
        try:
            self.ledger.fail(self.job.id, self.number, failure, reason)
        except Unwritable:
            raise
        except LedgerError as e:  # the lease is gone already, or a key cannot be read and the lease will expire
            log.info("%s: its failure was not taken: %s", self.job.id, e)
        self.lost.set()
        self.abandoned_at = time.monotonic()
        log.warning("%s: attempt %d: %s: %s; its thread is abandoned", self.job.id, self.number, failure, reason)

    def release(self) -> None:
        """Give the job back at no cost."""
        self.ledger.release(self.job.id, self.number)

    def check(self) -> None:
        """Raises Fenced, Drained or DeadlineExceeded when the attempt must stop."""
        if self.lost.is_set():
            raise Fenced(f"{self.job.id}: attempt {self.number} lost its lease")
        if self._draining.is_set():
            raise Drained(f"{self.job.id}: the worker is stopping")
        if self.overdue:
            raise DeadlineExceeded(f"past the deadline of {self.job.budget.deadline_s:g} s")

    def _append(self, blob: bytes) -> None:
        self._blobs.append(blob)
        self._append_blob(len(self._blobs) - 1)

    def _append_blob(self, index: int) -> None:
        self._write(index, lambda: self.ledger.append(self.job.id, self.number, index, self._blobs[index]))

    def _write(self, index: int, write: Callable[[], None]) -> None:
        """Write entry `index` of the journal. If a restarted Redis lost the journal's tail, write the tail again
        first."""
        while True:
            try:
                return self._call(write)
            except JournalConflict as e:
                if e.length >= index:
                    raise ContractError(f"{self.job.id}: Redis holds another journal than was written ({e})") from e
                for missing in range(e.length, index):
                    self._append_blob(missing)

    def _call(self, call: Callable[[], T]) -> T:
        """Call Redis. While Redis is away or full the attempt waits, and its deadline stands still.

        Raises Drained or Fenced when the attempt must stop meanwhile.
        """
        self._calling_since = began = time.monotonic()
        try:
            return self._retry(call)
        finally:
            # The order matters: the heartbeat reads both, and must never see a deadline that is too early.
            if (waited := time.monotonic() - began) > SHORT_WAIT_S:
                self._redis_away_s += waited
            self._calling_since = None

    def _pause(self, seconds: float) -> None:
        self._draining.wait(seconds)
        if self.lost.is_set() or self._draining.is_set():
            self.check()
