"""An attempt: one claimed job, which the agent loop sees as its journal.

Events are held back until their turn has ended and then written in one call. When that takes longer
than HELD_BACK_S, another thread writes them (`Leases`). So a turn costs one call to Redis, and a
kill costs the turn in flight at most.

A write renews a lease when a third of it is over. The ledger only takes writes under a lease in its
set, so an attempt that lost its lease can write nothing more. It knows nothing of what is played or
of other attempts.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple, TypeVar

from rollq.errors import (
    ContractError,
    FailureClass,
    Fenced,
    JournalConflict,
    LedgerError,
    Unwritable,
)
from rollq.events import Event, Observed, Prompt
from rollq.ledger.job_extras import save_extras
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.ledger.versions import Versions
from rollq.servers.retry import CONNECTION_ERRORS, RetryLoop
from rollq.token_stats import TokenStats
from rollq.trajectory import Header, Trajectory
from rollq.wire.codec import decode_header, encode_header
from rollq.wire.events import decode_event, encode_event
from rollq_worker.failures import DeadlineExceeded, Drained
from rollq_worker.process.attempts.time_limits import TimeLimits

log = logging.getLogger(__name__)

T = TypeVar("T")

OPENING = 2
"""Number of entries before the first turn: the header and the first prompt. They may travel with
it.
"""
HELD_BACK_S = 0.2
"""Seconds for which an event waits for the end of its turn. Then another thread writes it."""
SHORT_WAIT_S = 1.0
"""Seconds. A call to Redis that takes longer stops the deadline's clock, because Redis was away."""


class Question(NamedTuple):
    """Something that an attempt has asked another model than the policy."""

    engines: str
    """Name of the model's engines."""
    are_away: Callable[[], bool]
    """True while all engines of the model are away."""
    since: float
    """Monotonic time at which it was asked."""


class Attempt:
    """One claimed job as its journal. The heartbeat's thread watches it through `Leases`."""

    def __init__(
        self,
        ledger: Ledger,
        claim: Claim,
        draining: threading.Event,
        outage_s: Callable[[], float],
    ) -> None:
        self.ledger = ledger
        self.job = claim.job
        self.number = claim.attempt
        self.lease = claim.lease
        self.time_limits = TimeLimits()
        self.questions: list[Question] = []
        """Several at once where an agent program asks in parallel."""
        self.lost = threading.Event()
        """Set once the lease is lost."""
        self.abandoned_at: float | None = None
        """Monotonic time at which it was failed while its thread was in foreign code."""
        self.abandoned_why = ""
        self._blobs: list[bytes] = []
        """The whole journal. All of it is kept, because Redis may lose its tail."""
        self._written = 0
        """Number of entries that are in Redis. It changes under `_writing` only."""
        self.turns = 0
        """Turns that ended in this attempt."""
        self.written_bytes = 0
        """Bytes of journal entries that this attempt wrote to Redis."""
        self._held_since = inf
        """Monotonic time since when the oldest event is held back. Only the attempt's own thread
        brings it forward.
        """
        self._writing = threading.Lock()
        self._draining = draining
        self._outage_s = outage_s
        self._outage_before = outage_s()
        self._counting = threading.Lock()
        self._outages: dict[str, float] = {}
        """Seconds of each model's outages that were counted, by the clock of its engines."""
        self._redis_away_s = 0.0
        self._redis_counted = (0.0, 0.0)
        """Monotonic times between which waits for Redis were counted last."""
        self._calls: dict[int, float] = {}
        """Monotonic time since which each of its threads has been in a call to Redis."""
        self._retry = RetryLoop(wait=self._pause, relogin=True)
        self._started = time.monotonic()
        self._recorded_at: float | None = None

    @property
    def stopped_s(self) -> float:
        """Seconds for which the deadline's clock stood still, because the engine, Redis or the
        model of a user or judge was away.
        """
        since = self._calling_since
        waiting_s = 0.0 if since is None else self._uncounted_s(since, time.monotonic())
        redis_away_s = self._redis_away_s + waiting_s
        return self._outage_s() - self._outage_before + redis_away_s + self.time_limits.away_s

    @property
    def _calling_since(self) -> float | None:
        return min([*self._calls.values()], default=None)

    def stand_still(self, model: str, began_s: float, outage_s: float) -> None:
        """The clocks stood still while the engines of a model were away: seconds on the clock of
        these engines, from the beginning of a question until now. Several questions at once count
        an outage once. The deadline's clock knows the outages of the policy (an empty name).
        """
        with self._counting:
            counted_s = max(began_s, self._outages.get(model, 0.0))
            if outage_s > counted_s:
                self.time_limits.stand_still(outage_s - counted_s, deadline=bool(model))
                self._outages[model] = outage_s

    @property
    def left_s(self) -> float:
        """Seconds to the job's deadline."""
        passed_s = time.monotonic() - self._started
        return self.job.budget.deadline_s + self.stopped_s - passed_s

    @property
    def overdue(self) -> bool:
        # The first is cheap, and asked several times a turn.
        passed_s = time.monotonic() - self._started
        return passed_s > self.job.budget.deadline_s and self.left_s < 0

    @property
    def waits_for(self) -> tuple[str, float]:
        """Name of the thing that its thread waits for (see `Wait.what`), and the seconds so far."""
        call = self.time_limits.current
        outage = next((question for question in [*self.questions] if question.are_away()), None)
        if outage is not None:
            what = outage.engines
            since = outage.since
        elif call is not None and call.away:
            what = call.away
            since = call.away_since
        elif call is not None:
            what = call.what
            since = call.since
        elif (calling := self._calling_since) is not None:
            what = "redis"
            since = calling
        elif self._recorded_at is None:
            what = "start"
            since = self._started
        else:
            what = "engine"
            since = self._recorded_at
        return what, time.monotonic() - since

    def open(self, header: Header) -> None:
        """Begins a new journal. Its header is written with the first events."""
        self._record(encode_header(header, self.job.id))

    def resume(self) -> tuple[Header, list[Event]]:
        """Takes over an earlier attempt's journal: its header and its events.

        Raises ContractError, and UnknownSchema when another version of rollq has written it.
        """
        self._blobs = self._call(lambda: self.ledger.journal(self.job.id))
        self._written = len(self._blobs)
        if not self._blobs:
            raise ContractError(f"{self.job.id}: its journal has gone since the claim")
        header = decode_header(self._blobs[0], self.job.id)
        return header, [decode_event(blob, self.job.id) for blob in self._blobs[1:]]

    def append(self, event: Event) -> None:
        """Records an event. Once its turn has ended, everything that is held back is in Redis."""
        self.hold_back(event)
        if isinstance(event, Observed):
            another_turn_follows = len(event.ids) > 0
        else:
            another_turn_follows = isinstance(event, Prompt)
        if another_turn_follows and len(self._blobs) > OPENING:
            self.write()

    def hold_back(self, event: Event) -> None:
        """Records an event that travels with a later one, unless that takes long."""
        self._record(encode_event(event, self.job.id))
        if isinstance(event, Observed):
            self.turns += 1

    def write(self) -> None:
        """Writes everything that is held back."""
        self._call(lambda: self._write(self.ledger.append))

    def complete(self, trajectory: Trajectory, token_stats: TokenStats) -> None:
        """Append the events held back and the closing event, and end the job, in one step. Extras
        are kept before.
        """
        closed = trajectory.closed
        if closed is None:
            raise ContractError(f"{self.job.id}: the trajectory is not closed")
        end = partial(
            self.ledger.complete,
            turns=trajectory.turns,
            sampled_tokens=trajectory.sampled_tokens,
            total_tokens=len(trajectory.tokens),
            token_stats=token_stats,
        )
        last = encode_event(closed, self.job.id)
        if trajectory.extras:
            self._call(
                lambda: save_extras(self.ledger.scripts, self.job.id, self.lease, trajectory.extras)
            )
        self._call(lambda: self._write(end, [last]))

    @property
    def holds_back(self) -> bool:
        """True if something has been held back for too long, and no thread is writing it."""
        if self._written == len(self._blobs):  # as of most attempts, which wait for an engine
            return False
        late = time.monotonic() - self._held_since > HELD_BACK_S
        return late and not self.lost.is_set() and not self._writing.locked()

    def write_behind(self) -> None:
        """Writes events that have been held back for too long. For another thread than the
        attempt's own.

        Raises Unwritable or CONNECTION_ERRORS. The attempt's own thread meets every other error at
        its next call.
        """
        if not self.holds_back:
            return
        try:
            self._write(self.ledger.append)
        except (Unwritable, *CONNECTION_ERRORS):
            raise
        except Fenced:
            self.lost.set()
        except Exception as e:
            self._held_since = inf
            log.info("%s: not journaled in time: %s", self.job.id, e)

    def fail(self, failure: FailureClass, reason: str) -> str:
        """Writes the events held back and fails the attempt. Returns the job's state then: `queued`
        or `dead`.
        """

        def end() -> str:
            self._write_before_end()
            return self.ledger.fail(self.job.id, self.lease, failure, reason).status

        return self._call(end)

    def abandon(self, failure: FailureClass, reason: str) -> None:
        """Fails the attempt while its thread is in foreign code.

        The thread ends the attempt when it comes back; its later writes are refused.
        """
        try:
            self._write_before_end()
            self.ledger.fail(self.job.id, self.lease, failure, reason)
        except Unwritable:
            raise
        except LedgerError as e:
            # the lease is gone already, or a key cannot be read and the lease will expire
            log.info("%s: its failure was not taken: %s", self.job.id, e)
        self.abandoned_why = f"{failure}: {reason}"
        self.abandoned_at = time.monotonic()
        self.lost.set()
        log.warning(
            "%s: attempt %d: %s: %s; its thread is abandoned",
            self.job.id,
            self.number,
            failure,
            reason,
        )

    def release(self, *, restart: bool = False) -> None:
        """Writes the events held back and gives the job back at no cost. With `restart`, the next
        attempt begins without the journal.
        """
        self._write_before_end()
        self.ledger.release(self.job.id, self.lease, restart=restart)

    def is_fresh(self, weight_version: str, oldest: int) -> bool:
        """True if these weights are of the `oldest` step or a later one: `Versions.is_fresh`."""
        versions = Versions(self.ledger.redis, self.job.run)
        return self._call(lambda: versions.is_fresh(weight_version, oldest))

    def published(self) -> str | None:
        """The version of the run's weights that was published last; None before the first."""
        versions = Versions(self.ledger.redis, self.job.run)
        publication = self._call(versions.published)
        return publication.weight_version if publication else None

    def check(self) -> None:
        """Raises Fenced, Drained or DeadlineExceeded when the attempt must stop."""
        if self.lost.is_set():
            raise Fenced(f"{self.job.id}: attempt {self.number} lost its lease")
        if self._draining.is_set():
            raise Drained(f"{self.job.id}: the worker is stopping")
        if self.overdue:
            raise DeadlineExceeded(f"past the deadline of {self.job.budget.deadline_s:g} s")

    def _record(self, blob: bytes) -> None:
        """Holds an entry of the journal back."""
        if self.lost.is_set():
            self.check()
        if self._written == len(self._blobs):
            self._held_since = time.monotonic()
        self._blobs.append(blob)
        self._recorded_at = time.monotonic()

    def _write(
        self, write: Callable[[str, str, int, Sequence[bytes]], None], last: Sequence[bytes] = ()
    ) -> None:
        """Writes everything that is held back, and `last`, in one call. Raises Fenced.

        If a restarted Redis lost the journal's tail, the tail is written again with it.
        """
        with self._writing:
            while True:
                blobs = [*self._blobs[self._written :], *last]
                if not blobs:
                    return
                try:
                    write(self.job.id, self.lease, self._written, blobs)
                except JournalConflict as e:
                    self._written = self._kept(e)
                else:
                    self._written += len(blobs) - len(last)
                    self.written_bytes += sum(map(len, blobs))
                    return

    def _kept(self, conflict: JournalConflict) -> int:
        """Number of entries that are left of this journal in Redis. Raises Fenced when they are not
        this attempt's.

        A journal never gets entries of two attempts that played on without each other.
        """
        other = (
            f"{self.job.id}: Redis holds another journal than attempt {self.number} wrote "
            f"({conflict})"
        )
        try:
            stored = self.ledger.journal(self.job.id)
        except ContractError as e:  # an entry cannot be read, so it is not this attempt's
            raise Fenced(other) from e
        if len(stored) == self._written or stored != self._blobs[: len(stored)]:
            raise Fenced(other)
        return len(stored)

    def _write_before_end(self) -> None:
        """Writes the events held back. An attempt whose journal is damaged ends without it."""
        try:
            self._write(self.ledger.append)
        except (Fenced, Unwritable):
            raise
        except LedgerError as e:
            log.info("%s: its last events were not journaled: %s", self.job.id, e)

    def _call(self, call: Callable[[], T]) -> T:
        """Calls Redis. While Redis is away or full the attempt waits, and its deadline stands
        still.

        Raises Drained if the worker stops meanwhile. Raises Fenced if the lease is lost.
        """
        thread = threading.get_ident()
        self._calls[thread] = began = time.monotonic()
        try:
            return self._retry(call)
        finally:
            # The order matters: the heartbeat reads both, and must never see a deadline that is too
            # early.
            with self._counting:
                now = time.monotonic()
                if now - began > SHORT_WAIT_S:
                    self._redis_away_s += self._uncounted_s(began, now)
                    first, last = self._redis_counted
                    self._redis_counted = (min(began, first) if began <= last else began), now
            del self._calls[thread]

    def _uncounted_s(self, began: float, now: float) -> float:
        """Seconds of a wait for Redis that no other thread's wait has counted; 0.0 for a short
        one.
        """
        if now - began <= SHORT_WAIT_S:
            return 0.0
        first, last = self._redis_counted
        if began > last:
            return now - began
        return max(0.0, first - began) + max(0.0, now - last)

    def _pause(self, seconds: float) -> None:
        self._draining.wait(seconds)
        if self.lost.is_set() or self._draining.is_set():
            self.check()
