"""All attempts of this worker, and two threads for all of them: the heartbeat and the late writer.

The heartbeat renews the leases and watches the time limits. An attempt stops by itself at its next
`check`. If it cannot check, because it waits for the engine or is in foreign code, the heartbeat
ends it. The late writer journals buffered events of long turns.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from rollq.errors import RollqError, Unwritable
from rollq.ledger.constants import LEASE_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.servers.refusal import no_answer
from rollq.servers.retry import CONNECTION_ERRORS, WARN_EVERY_S
from rollq_worker.agents.programs.running import lost_agent_threads
from rollq_worker.process.attempts.attempt import Attempt

log = logging.getLogger(__name__)


RENEW_EVERY_S = LEASE_S / 3
TICK_S = 1.0
"""Seconds between two looks at the attempts."""
REPORT_S = 5.0
"""Seconds the lease outlives the deadline, so that the attempt can report the cause."""
LOOK_EVERY_S = 0.2
"""Seconds between two looks for events that are held back for too long."""
AWAY_PAUSE_S = 1.0
"""Seconds without late writes after Redis took none."""
LOST_THREAD_S = 30.0
"""Seconds after which the thread of an abandoned attempt counts as lost."""
MOST_LOST = 4
"""Number of lost threads with which a worker ends, if it has not lost most of its slots before."""


class Played(NamedTuple):
    """Work of attempts."""

    turns: int = 0
    written_bytes: int = 0
    """Bytes of journals that they wrote to Redis."""

    def plus(self, attempt: Attempt) -> "Played":
        return Played(self.turns + attempt.turns, self.written_bytes + attempt.written_bytes)


class Leases:
    """Holds this worker's attempts.

    `stopped_s(run)` counts the seconds for which engines stopped the deadlines of that run.
    `end_engine_wait(job_id)` ends a job's wait for the engine. `on_slots_lost` is called once, when
    MOST_LOST threads do not come back, or those of more than half of the `slots`.
    """

    def __init__(
        self,
        draining: threading.Event,
        stopped_s: Callable[[str], float] = lambda run: 0.0,
        *,
        end_engine_wait: Callable[[str], object] = lambda job_id: None,
        slots: int = 1,
        on_slots_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.draining = draining
        self._stopped_s = stopped_s
        self._end_engine_wait = end_engine_wait
        self._slots = slots
        self._on_slots_lost: Callable[[], None] | None = on_slots_lost
        self._held: set[Attempt] = set()
        self._lost_threads: set[Attempt] = set()
        self._ended = Played()
        """Counts of the attempts that are no longer held."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._renewed: dict[str, float] = {}
        """Monotonic time at which each run's leases were last renewed."""
        self._warned: dict[tuple[str, type[Exception]], float] = {}
        """Monotonic time of the last warning of such an error, by run or job."""
        self._thread = threading.Thread(target=self._loop, name="rollq-heartbeat", daemon=True)
        self._late_writer = threading.Thread(
            target=self._write_late, name="rollq-late-writer", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        self._late_writer.start()

    def stop(self) -> None:
        self._stop.set()

    @contextmanager
    def hold(self, ledger: Ledger, claim: Claim) -> Iterator[Attempt]:
        """Renews the claim's lease until the block ends."""
        stopped_s = partial(self._stopped_s, claim.job.run)
        attempt = Attempt(ledger, claim, self.draining, stopped_s)
        with self._lock:
            self._held.add(attempt)
        try:
            yield attempt
        finally:
            with self._lock:
                self._held.discard(attempt)
                self._ended = self._ended.plus(attempt)
                was_lost = attempt in self._lost_threads
                self._lost_threads.discard(attempt)
            if was_lost:
                log.warning(
                    "%s: the thread of attempt %d came back", attempt.job.id, attempt.number
                )

    def held(self) -> list[Attempt]:
        with self._lock:
            return list(self._held)

    def played(self) -> Played:
        """Work of all attempts so far."""
        with self._lock:
            held = list(self._held)
            played = self._ended
        for attempt in held:
            played = played.plus(attempt)
        return played

    def lost_threads(self) -> list[str]:
        """The jobs whose foreign code keeps its thread for ever."""
        with self._lock:
            return sorted(attempt.job.id for attempt in self._lost_threads)

    def release_all(self) -> int:
        """Releases all jobs, so that other workers go on with them at once. Returns how many."""
        released = 0
        for attempt in self.held():
            attempt.lost.set()
            try:
                attempt.release()
                released += 1
            except (RollqError, *CONNECTION_ERRORS) as e:
                # It ended, was abandoned before, or its lease expires.
                log.info("%s: not released: %s", attempt.job.id, e)
        return released

    def _loop(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(TICK_S):
            waited_s = time.monotonic() - began
            if waited_s > 2 * TICK_S:
                self.stand_still(waited_s - TICK_S)
            with self._log_errors("all"):
                # this thread alone keeps every lease alive, whatever one tick raises
                self.tick()
            began = time.monotonic()

    def stand_still(self, seconds: float) -> None:
        """Sets the clocks of all attempts back, because this process was frozen for so long: no
        environment has failed meanwhile.
        """
        for attempt in self.held():
            attempt.time_limits.stand_still(seconds)

    def _write_late(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            with self._log_errors("late writes"):  # no other thread journals a turn before it ends
                self.write_behind()

    def write_behind(self) -> None:
        """Writes the events that attempts hold back for too long."""
        for attempt in self.held():
            if not attempt.holds_back:
                continue
            try:
                attempt.write_behind()
            except (Unwritable, *CONNECTION_ERRORS) as e:
                log.info("%s: not journaled in time: %s", attempt.job.id, type(e).__name__)
                self._stop.wait(AWAY_PAUSE_S)
                return

    def tick(self) -> None:
        """Renews the leases that are due and watches all attempts."""
        runs = _by_run(self.held())
        self._renewed = {run: at for run, at in self._renewed.items() if run in runs}
        for attempts in runs.values():
            self._tend(attempts)
        self._count_lost_threads()

    def _tend(self, attempts: list[Attempt]) -> None:
        """Renews and watches the attempts of one run."""
        run = attempts[0].ledger.run
        now = time.monotonic()
        near = {a for a in attempts if a.left_s < LEASE_S}
        with self._log_errors(run):
            renewed_at = self._renewed.get(run, float("-inf"))
            all_due = now - renewed_at >= RENEW_EVERY_S - TICK_S / 2
            # A lease never outlasts its job's deadline by much, so one with a near deadline is
            # renewed at every tick.
            self.renew(attempts if all_due else [*near])
            if all_due:
                self._renewed[run] = now
        for attempt in attempts:
            # after the renewals, so that an error of one attempt costs no other its lease
            # Nearly all of a thousand need no look. One that is abandoned has lost its lease, too.
            is_in_foreign_code = attempt.time_limits.current is not None
            if attempt in near or attempt.lost.is_set() or is_in_foreign_code:
                with self._log_errors(attempt.job.id):
                    self._watch(attempt)

    def renew(self, attempts: list[Attempt]) -> None:
        """Renews these leases of one run. Leases of attempts past their deadline are left
        to expire.
        """
        members = [
            attempt for attempt in attempts if not attempt.overdue and not attempt.lost.is_set()
        ]
        if not members:
            return
        left_s = [attempt.left_s + REPORT_S for attempt in members]
        leases = [(attempt.job.id, attempt.lease) for attempt in members]
        lost = set(members[0].ledger.renew_leases(leases, left_s))
        for attempt, lease in zip(members, leases, strict=True):
            if lease in lost:
                attempt.lost.set()

    def _watch(self, attempt: Attempt) -> None:
        """Ends an attempt that is overdue or has lost its lease, if its thread cannot check by
        itself.
        """
        call = attempt.time_limits.current
        if attempt.abandoned_at is not None:
            return
        if call is not None and call.overdue:
            attempt.abandon(*call.blame(f"nothing in {call.limit_s:g} s"))
        elif call is not None and attempt.overdue:
            attempt.abandon(
                *call.blame(f"past the deadline of {attempt.job.budget.deadline_s:g} s")
            )
        elif not attempt.overdue and not attempt.lost.is_set():
            return
        self._end_engine_wait(attempt.job.id)  # a teacher's too, which is a call with a limit

    @contextmanager
    def _log_errors(self, what: str) -> Iterator[None]:
        """Logs any error of the block, which is about one run or job, so that the others go on."""
        try:
            yield
        except (RollqError, *CONNECTION_ERRORS) as e:
            if self._is_new(what, type(e)):
                remedy = f". {then}" if (then := no_answer(e)) else ""
                log.warning(
                    "heartbeat: %s: %s: %s%s", what, type(e).__name__, str(e).rstrip("."), remedy
                )
        except Exception:
            log.exception("heartbeat: %s: failed; trying again in %g s", what, TICK_S)

    def _is_new(self, what: str, error: type[Exception]) -> bool:
        """True if it was not logged for WARN_EVERY_S seconds. Else every tick would repeat it."""
        now = time.monotonic()
        with self._lock:
            recent = {key: at for key, at in self._warned.items() if now - at < WARN_EVERY_S}
            self._warned = recent
            return self._warned.setdefault((what, error), now) == now

    def _count_lost_threads(self) -> None:
        now = time.monotonic()
        with self._lock:
            lost = {
                a
                for a in self._held
                if a.abandoned_at is not None and now - a.abandoned_at > LOST_THREAD_S
            }
            new = lost - self._lost_threads
            self._lost_threads = lost
        if new:
            names = ", ".join(self.lost_threads())
            log.error(
                "%d of %d slots are lost to steps that do not end: %s",
                len(lost),
                self._slots,
                names,
            )
        is_crowded = len(lost) + lost_agent_threads() >= MOST_LOST
        too_many = is_crowded or len(lost) * 2 > self._slots
        if too_many and self._on_slots_lost is not None:
            on_slots_lost = self._on_slots_lost
            self._on_slots_lost = None
            on_slots_lost()


def _by_run(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    by_run: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_run[attempt.ledger.run].append(attempt)
    return by_run
