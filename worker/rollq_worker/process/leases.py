"""Leases: what a worker holds, kept alive and watched over by one heartbeat thread for all of them.

An `Attempt` is the journal of one claimed job: every append renews the lease, and `check` raises as soon as the attempt
must stop. Membership in the ledger's lease set is the fence, so an attempt that lost its lease can write nothing. An
attempt that cannot look up, because it waits for the engine or sits in foreign code, is ended from outside.
"""

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from rollq.errors import ContractError, FailureClass, Fenced, JournalConflict, RollqError
from rollq.ledger.connection import CONNECTION_ERRORS
from rollq.ledger.ledger import Claim, Ledger
from rollq.ledger.retry import retry
from rollq.token_stats import Fidelity
from rollq.trajectory import Event, Header, Trajectory
from rollq.wire.codec import decode_event, decode_header, encode_event, encode_header
from rollq_worker.failures import DeadlineExceeded, Drained
from rollq_worker.process.time_limits import Steps, blame

log = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_S = 15.0
BEAT_S = LEASE_S / 3
TICK_S = 1.0
"""Between two looks at what the attempts are doing."""
REPORT_S = 5.0
"""For so long the lease outlives the deadline, so that the attempt itself says what it was waiting for."""
STUCK_S = 10.0
"""A thread that has not left a step for so long after it was interrupted is lost."""


class Attempt:
    """One claimed job, seen by the agent loop as its journal."""

    def __init__(self, ledger: Ledger, claim: Claim, draining: threading.Event, outage_s: Callable[[], float]) -> None:
        self.ledger = ledger
        self.job = claim.job
        self.number = claim.attempt
        self.steps = Steps()
        self.lost = threading.Event()
        self.abandoned_at: float | None = None
        """Monotonic time at which it was failed under its thread."""
        self._blobs: list[bytes] = []
        self._draining = draining
        self._outage_s = outage_s
        self._outage_before = outage_s()
        self._away_s = 0.0  # seconds that its thread waited for Redis
        self._calling: float | None = None  # since when it has been doing so, or may be
        self._started = time.monotonic()

    @property
    def stopped_s(self) -> float:
        """Seconds in which the deadline's clock stood still: the engine or Redis was away, which is nobody's fault."""
        calling = self._calling
        waiting = 0.0 if calling is None else time.monotonic() - calling
        return self._outage_s() - self._outage_before + self._away_s + (waiting if waiting > TICK_S else 0.0)

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
        """Go on with the journal of an earlier attempt: its header and its events. Raises ContractError."""
        self._blobs = self._patiently(lambda: self.ledger.journal(self.job.id))
        if not self._blobs:
            raise ContractError(f"{self.job.id}: its journal has gone since the claim")
        header = decode_header(self._blobs[0], self.job.id)
        return header, [decode_event(blob, self.job.id) for blob in self._blobs[1:]]

    def append(self, event: Event) -> None:
        self._append(encode_event(event, self.job.id))

    def complete(self, trajectory: Trajectory, fidelity: Fidelity) -> None:
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
            fidelity=fidelity,
        )
        try:
            self._patiently(end)
        except JournalConflict as e:
            self._resend(e, len(self._blobs))
            self._patiently(end)

    def fail(self, failure: FailureClass, reason: str, *, final: bool = False) -> str:
        """Give the attempt up. Returns what became of the job: `queued` or `dead`."""
        outcome = self._patiently(lambda: self.ledger.fail(self.job.id, self.number, failure, reason, final=final))
        return outcome.status

    def abandon(self, failure: FailureClass, reason: str) -> None:
        """Fail the attempt under its thread, whose later writes are fenced."""
        with suppress(Fenced):  # the lease may be gone already
            self.ledger.fail(self.job.id, self.number, failure, reason)
        self.lost.set()
        self.abandoned_at = time.monotonic()
        log.warning("%s: attempt %d: %s: %s; its thread is abandoned", self.job.id, self.number, failure, reason)

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

    def _append(self, blob: bytes) -> None:
        self._blobs.append(blob)
        self._write(len(self._blobs) - 1)

    def _write(self, index: int) -> None:
        try:
            self._patiently(lambda: self.ledger.append(self.job.id, self.number, index, self._blobs[index], LEASE_S))
        except JournalConflict as e:
            self._resend(e, index)
            self._write(index)

    def _resend(self, conflict: JournalConflict, index: int) -> None:
        """Redis came back without its journal's tail: write again what comes before entry `index`."""
        if conflict.length >= index:
            raise ContractError(
                f"{self.job.id}: Redis holds another journal than was written ({conflict})"
            ) from conflict
        for missing in range(conflict.length, index):
            self._write(missing)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call until Redis takes it: it may be away or full for as long as it likes, at no cost to the attempt.

        Raises Drained or Fenced when the attempt must stop meanwhile.
        """
        self._calling = began = time.monotonic()
        try:
            while True:
                try:
                    return retry(call, wait=self._pause)
                except CONNECTION_ERRORS as e:
                    log.info("%s: Redis is away (%s); trying again", self.job.id, type(e).__name__)
                    self._pause(random.uniform(0.5, 1.5))
        finally:
            # In this order: the heartbeat looks on, and must never see a deadline that is too early.
            if (waited := time.monotonic() - began) > TICK_S:
                self._away_s += waited
            self._calling = None

    def _pause(self, seconds: float) -> None:
        self._draining.wait(seconds)
        if self.lost.is_set() or self._draining.is_set():
            self.check()


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """The ledger's complaints about one run or job are logged, and the others go on."""
    try:
        yield
    except RollqError as e:
        log.warning("heartbeat: %s: %s: %s", what, type(e).__name__, e)


class Leases:
    """All attempts of this worker, and the thread that renews and watches them.

    `cut` ends the wait for the engine of a job's attempt; `crippled` is called once, when more than half of the `slots`
    are lost to threads that do not come back.
    """

    def __init__(
        self,
        draining: threading.Event,
        outage_s: Callable[[], float] = lambda: 0.0,
        *,
        cut: Callable[[str], object] = lambda job_id: None,
        slots: int = 1,
        crippled: Callable[[], None] = lambda: None,
    ) -> None:
        self.draining = draining
        self._outage_s = outage_s
        self._cut = cut
        self._slots = slots
        self._crippled: Callable[[], None] | None = crippled
        self._held: set[Attempt] = set()
        self._stuck: set[Attempt] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._beaten = float("-inf")
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
                was_stuck = attempt in self._stuck
                self._stuck.discard(attempt)
            if was_stuck:
                log.warning("%s: the thread of attempt %d came back", attempt.job.id, attempt.number)

    def held(self) -> list[Attempt]:
        with self._lock:
            return list(self._held)

    def stuck(self) -> list[str]:
        """The jobs in whose foreign code threads are lost."""
        with self._lock:
            return sorted(attempt.job.id for attempt in self._stuck)

    def _beat(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.tick()
            except (RollqError, *CONNECTION_ERRORS) as e:
                log.warning("heartbeat: %s: %s", type(e).__name__, e)
            except Exception:
                # The one thread that keeps every lease alive must outlive whatever Redis throws at it.
                log.exception("heartbeat failed; trying again in %g s", TICK_S)

    def tick(self) -> None:
        """Look at every attempt, and renew what is due."""
        beat = time.monotonic() - self._beaten >= BEAT_S - TICK_S / 2
        # A lease ends with its job's deadline, so that of a short one has to be moved on sooner.
        self.renew([a for a in self.held() if beat or a.left_s < LEASE_S])
        if beat:
            self._beaten = time.monotonic()
        for attempt in self.held():  # after the leases: what goes wrong with one attempt must cost no other its own
            with _reported(attempt.job.id):
                self._watch(attempt)
        self._count_stuck()

    def renew(self, attempts: list[Attempt]) -> None:
        """Renew these leases, one call a run. Attempts past their deadline are left to expire."""
        by_run: defaultdict[Ledger, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if not attempt.overdue and not attempt.lost.is_set():
                by_run[attempt.ledger].append(attempt)
        for ledger, members in by_run.items():
            with _reported(ledger.run):
                left = [a.left_s + REPORT_S for a in members]
                lost = set(ledger.renew([(a.job.id, a.number) for a in members], LEASE_S, left))
                for attempt in members:
                    if (attempt.job.id, attempt.number) in lost:
                        attempt.lost.set()

    def _watch(self, attempt: Attempt) -> None:
        """End what overruns, and what has lost its lease, if it cannot look up itself."""
        step = attempt.steps.current
        if attempt.abandoned_at is not None:
            attempt.steps.interrupt()  # again: foreign code may have swallowed it
        elif step is not None and step.overrun:
            attempt.abandon(*blame(step, f"nothing in {step.limit_s:g} s"))
        elif step is not None and attempt.overdue:
            attempt.abandon(*blame(step, f"past the deadline of {attempt.job.budget.deadline_s:g} s"))
        elif attempt.overdue or attempt.lost.is_set():
            self._cut(attempt.job.id)

    def _count_stuck(self) -> None:
        now = time.monotonic()
        with self._lock:
            stuck = {a for a in self._held if a.abandoned_at is not None and now - a.abandoned_at > STUCK_S}
            new = stuck - self._stuck
            self._stuck = stuck
        if new:
            names = ", ".join(self.stuck())
            log.error("%d of %d slots are lost to steps that do not end: %s", len(stuck), self._slots, names)
        if len(stuck) * 2 > self._slots and self._crippled is not None:
            crippled, self._crippled = self._crippled, None
            crippled()


def release_all(leases: Leases) -> int:
    """Release whatever is still held, so that other workers go on with it at once. Returns how many."""
    released = 0
    for attempt in leases.held():
        attempt.lost.set()
        try:
            attempt.release()
            released += 1
        except RollqError as e:
            log.info("%s: not released: %s", attempt.job.id, e)  # it ended, or was abandoned before
    return released
