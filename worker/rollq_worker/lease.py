"""Leases: what a worker holds, kept alive by one heartbeat thread for all of them.

An `Attempt` is the journal of one claimed job: every append renews the lease, and `check` raises as soon as the attempt
must stop. Membership in the ledger's lease set is the fence, so an attempt that lost its lease can write nothing.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollq.codec import decode_event, decode_header, encode_event, encode_header
from rollq.errors import ContractError, FailureClass, Fenced, JournalConflict, RollqError
from rollq.ledger import Claim, Ledger
from rollq.trajectory import Event, Header, Trajectory
from rollq_worker.boundary import DeadlineExceeded, Drained

log = logging.getLogger(__name__)

LEASE_S = 15.0
BEAT_S = LEASE_S / 3


class Attempt:
    """One claimed job, seen by the agent loop as its journal."""

    def __init__(self, ledger: Ledger, claim: Claim, draining: threading.Event, outage_s: Callable[[], float]) -> None:
        self.ledger = ledger
        self.job = claim.job
        self.number = claim.attempt
        self._blobs: list[bytes] = []
        self.lost = threading.Event()
        self._draining = draining
        self._outage_s = outage_s
        self._started = self._clock()

    @property
    def overdue(self) -> bool:
        """Past the job's deadline. An outage of the engine does not count: it is nobody's fault here."""
        return self._clock() - self._started > self.job.budget.deadline_s

    def open(self, header: Header) -> None:
        """Write the header, the first blob of every journal."""
        self._append(encode_header(header, self.job.id))

    def resume(self) -> tuple[Header, list[Event]]:
        """Go on with the journal of an earlier attempt: its header and its events. Raises ContractError."""
        self._blobs = self.ledger.journal(self.job.id)
        header = decode_header(self._blobs[0], self.job.id)
        return header, [decode_event(blob, self.job.id) for blob in self._blobs[1:]]

    def append(self, event: Event) -> None:
        self._append(encode_event(event, self.job.id))

    def complete(self, trajectory: Trajectory) -> None:
        """Append the closing event and end the job, in one step."""
        closed = trajectory.closed
        if closed is None:
            raise ContractError(f"{self.job.id}: the trajectory is not closed")
        self.ledger.complete(
            self.job.id,
            self.number,
            len(self._blobs),
            encode_event(closed, self.job.id),
            turns=trajectory.turns,
            sampled_tokens=trajectory.sampled_tokens,
            total_tokens=len(trajectory.tokens),
        )

    def fail(self, failure: FailureClass, reason: str) -> str:
        """Give the attempt up. Returns what became of the job: `queued` or `dead`."""
        return self.ledger.fail(self.job.id, self.number, failure, reason).status

    def release(self) -> None:
        """Give the job back at no cost."""
        self.ledger.release(self.job.id, self.number)

    def check(self) -> None:
        if self.lost.is_set():
            raise Fenced(f"{self.job.id}: attempt {self.number} lost its lease")
        if self._draining.is_set():
            raise Drained(f"{self.job.id}: the worker is stopping")
        if self.overdue:
            raise DeadlineExceeded(f"past the deadline of {self.job.budget.deadline_s:g} s")

    def _clock(self) -> float:
        return time.monotonic() - self._outage_s()

    def _append(self, blob: bytes) -> None:
        self._blobs.append(blob)
        self._write(len(self._blobs) - 1)

    def _write(self, index: int) -> None:
        try:
            self.ledger.append(self.job.id, self.number, index, self._blobs[index], LEASE_S)
        except JournalConflict as e:
            if e.length >= index:
                raise ContractError(f"{self.job.id}: Redis holds another journal than was written ({e})") from e
            for missing in range(e.length, index + 1):  # Redis came back without its tail
                self._write(missing)


class Leases:
    """All attempts of this worker, and the thread that renews them."""

    def __init__(self, draining: threading.Event, outage_s: Callable[[], float] = lambda: 0.0) -> None:
        self.draining = draining
        self._outage_s = outage_s
        self._held: set[Attempt] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="rollq-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    @contextmanager
    def hold(self, ledger: Ledger, claim: Claim) -> Iterator[Attempt]:
        """Renew the claim's lease until the block ends."""
        attempt = Attempt(ledger, claim, self.draining, self._outage_s)
        with self._lock:
            self._held.add(attempt)
        try:
            yield attempt
        finally:
            with self._lock:
                self._held.discard(attempt)

    def held(self) -> list[Attempt]:
        with self._lock:
            return list(self._held)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self.renew()
            except RollqError as e:
                log.warning("heartbeat: %s: %s", type(e).__name__, e)
            except Exception:
                # The one thread that keeps every lease alive must outlive whatever Redis throws at it.
                log.exception("heartbeat failed; trying again in %g s", BEAT_S)

    def renew(self) -> None:
        """Renew every lease, one call a run. Attempts past their deadline are left to expire."""
        by_run: defaultdict[Ledger, list[Attempt]] = defaultdict(list)
        for attempt in self.held():
            if not attempt.overdue:
                by_run[attempt.ledger].append(attempt)
        for ledger, attempts in by_run.items():
            lost = set(ledger.renew([(a.job.id, a.number) for a in attempts], LEASE_S))
            for attempt in attempts:
                if (attempt.job.id, attempt.number) in lost:
                    attempt.lost.set()


def release_all(leases: Leases) -> int:
    """Release whatever is still held, so that other workers go on with it at once. Returns how many."""
    held = leases.held()
    for attempt in held:
        attempt.lost.set()
        attempt.release()
    return len(held)
