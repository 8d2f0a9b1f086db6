"""The reaper: brings back lost jobs and sends those that are due.

It is a thread in every worker; one reaps at a time. Expired leases and due retries go back to
`queued`; jobs that are due there are sent to the broker and then confirmed. Sending is an outbox:
if a process dies before it confirms, the job is due again. Sending twice is harmless, because a job
can be claimed only once.

The thread also shows that the worker lives: it registers the worker in the ledger and touches the
alive file.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollq.client.producing.broker import Broker
from rollq.errors import LedgerError, RollqError, Unwritable
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import JobMessage
from rollq.ledger.stored import text
from rollq.ledger.workers.live_workers import (
    REGISTER_EVERY_S,
    LiveWorker,
    live_workers,
    queues_of,
    register,
    unregister,
)
from rollq.ledger.workers.reaping import ActiveRuns, ReaperRole
from rollq.servers.retry import CONNECTION_ERRORS, WARN_EVERY_S
from rollq_worker.process.outbox import Outbox

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Seconds between two looks at every active run. A silence of `constants.OUTAGE_S` counts as an
outage.
"""
SEND_S = 2.0
"""Most seconds of a tick that go into sending. With all else a tick must end before the role of the
reaper does.
"""
STAND_BY_S = 1.0
"""Most seconds that a worker which stands by waits beyond the end of the reaper's role."""
PATIENCE_S = 0.3
"""Seconds for which it makes a call again, for `connect`. The next tick tries again."""
LIMIT = 100
"""Most jobs in one call, because Redis does nothing else while a script runs."""
MOST_MESSAGES = 10_000
"""Most messages at the broker, beyond two for each queued job. When there are more, no message is
added.

While the engine is away, perhaps for days, no worker takes messages, and every job is sent again
every ten minutes.
"""
LEAVE_ALONE_S = 5.0
"""Seconds for which a run that cannot be read is left alone."""


class Reaper:
    """Reaps while this worker has the role, and stands by otherwise. `describe` describes this
    worker. `alive_file` is touched (for health checks) while Redis answers and `loop_is_alive`.
    """

    def __init__(
        self,
        connection: Any,
        broker: Broker,
        describe: Callable[[], LiveWorker],
        alive_file: Path | None = None,
        loop_is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self.connection = connection
        self.alive_file = alive_file
        self._describe = describe
        self._loop_is_alive = loop_is_alive
        self._name = describe().name
        self._outbox = Outbox(broker)
        self._role = ReaperRole(connection, self._name)
        self._active = ActiveRuns(connection)
        self._runs: dict[str, _Run] = {}
        self._queued = 0
        """Queued jobs of all active runs."""
        self._workers: Sequence[LiveWorker] = ()
        self._workers_read = float("-inf")
        self._registered = float("-inf")
        self._role_taken = float("-inf")
        self._warned: dict[str, float] = {}
        """Time of the last warning of each kind."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Waits until the running tick has ended."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def leave(self) -> None:
        """Hand the role over and remove this worker from the live ones."""
        for what in (self._role.hand_over, lambda: unregister(self.connection, self._name)):
            try:
                what()
            except (RollqError, *CONNECTION_ERRORS) as e:  # both end by themselves
                log.warning("reaper: not signed off: %s: %s", type(e).__name__, e)

    def _loop(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.turn()
                self._show_life()
            except (RollqError, *CONNECTION_ERRORS) as e:
                self._warn("nothing is reaped", e)
            except Exception:
                # Lost jobs come back through this thread alone: it must survive every error of
                # Redis and the broker.
                log.exception("reaper failed; trying again in %g s", TICK_S)
            self._stop.wait(TICK_S - (time.monotonic() - began))

    def _show_life(self) -> None:
        if self.alive_file is None or not self._loop_is_alive():
            return
        try:
            self.alive_file.touch()
        except OSError as e:
            self._warn(f"{self.alive_file} cannot be touched", e)

    def turn(self) -> None:
        """Register, then reap once, or stand by until the role may be free."""
        self._register()
        left = self._keep_role()
        if left:
            self._stop.wait(left + random.uniform(0.0, STAND_BY_S))
        else:
            self.tick()

    def _keep_role(self) -> float:
        """Takes or renews the role. Returns 0.0, or the seconds until that of another ends."""
        self._role_taken = time.monotonic()
        return self._role.take()

    def _register(self) -> None:
        if time.monotonic() - self._registered < REGISTER_EVERY_S:
            return
        try:
            register(self.connection, self._describe())
            self._registered = time.monotonic()
        except (RollqError, *CONNECTION_ERRORS) as e:
            self._warn("this worker is not registered", e)

    def tick(self) -> int:
        """Reap the active runs, and send the jobs that are due. Returns how many jobs were sent.

        A run that fails does not hold up the others.
        """
        until = time.monotonic() + SEND_S
        sent = 0
        more = self._due_runs()
        random.shuffle(more)
        for _ in range(20):  # most calls for one run
            due, more = self._reap(more)
            sent += self._outbox.send(due, self._queues_to_count(), until)
            if not more or self._outbox.busy or time.monotonic() >= until:
                break
        return sent

    def _due_runs(self) -> "list[_Run]":
        try:
            names, due, idle, self._queued = self._active.look(bool(self._empty_queues()))
        except (LedgerError, *CONNECTION_ERRORS) as e:
            self._warn("the list of active runs (those that this worker knows go on)", e)
            names = list(self._runs)
            due = list(names)
            idle = []
        self._remove(idle)
        lost = self._lost_run(names)
        if lost is not None:
            names.append(lost)
            due.append(lost)
        before = self._runs
        self._runs = {name: before.get(name) or _Run(self.connection, name) for name in names}
        return [self._runs[name] for name in due]

    def _remove(self, idle: Sequence[str]) -> None:
        try:
            for name in idle:
                self._active.remove(name)
        except (LedgerError, *CONNECTION_ERRORS) as e:
            self._warn("runs without jobs stay on the list of active runs", e)

    def _lost_run(self, active: Sequence[str]) -> str | None:
        """A run that has jobs and is not on the list; one of all runs is looked at in each tick."""
        try:
            name = self._active.next_of_all()
            if name is None or name in active or not any(self._active.jobs(name)):
                return None
            self._active.add(name)
        except (LedgerError, *CONNECTION_ERRORS) as e:
            self._warn("the list of all runs", e)
            return None
        return name

    def _reap(
        self, runs: "Sequence[_Run]"
    ) -> "tuple[list[tuple[Ledger, list[JobMessage]]], list[_Run]]":
        """Messages to send now, the most urgent first, and the runs that may have more."""
        due = []
        more = []
        for run in runs:
            if time.monotonic() - self._role_taken >= TICK_S:
                self._keep_role()  # there are many runs
            messages, playable = self._reap_run(run)
            if playable:
                due.append((run.ledger, playable))
            if len(messages) == LIMIT and run.playable:
                more.append(run)
        if not self._has_room():
            return [], []
        return sorted(due, key=lambda item: item[1][0].priority), more

    def _reap_run(self, run: "_Run") -> tuple[Sequence[JobMessage], list[JobMessage]]:
        """Messages of the run that are due, and those that a live worker can play.

        A run that fails is left alone for a while.
        """
        if time.monotonic() < run.left_until:
            return [], []
        try:
            messages = run.ledger.reap(LIMIT, self._empty_queues())
            return messages, self._playable(run, messages) if messages else []
        except (RollqError, *CONNECTION_ERRORS) as e:
            self._warn(f"run {run.name}", e)
            if not isinstance(e, Unwritable):
                run.left_until = time.monotonic() + LEAVE_ALONE_S
            return [], []

    def _empty_queues(self) -> list[str]:
        return [queue for queue, count in self._outbox.waiting.items() if not count]

    def _playable(self, run: "_Run", messages: Sequence[JobMessage]) -> list[JobMessage]:
        """Messages that a live worker can play. The others stay in the ledger until there is such a
        worker.
        """
        workers = self._live_workers()
        if not workers:  # nothing is known of any
            return list(messages)
        tokenizer, template = run.hashes()
        fitting = [worker for worker in workers if worker.plays(tokenizer, template)]
        queues = queues_of(fitting)
        run.playable = bool(queues)
        for queue in sorted({message.queue for message in messages} - queues):
            lacks = f"no live worker takes jobs of queue {queue!r}"
            remedy = f"Start `rollq worker --queues {queue}`"
            if tokenizer:
                lacks += f" with its tokenizer ({tokenizer[:12]}) and template ({template[:12]})"
                remedy += " with the run's tokenizer"
            self._warn(f"run {run.name} waits: {lacks}. {remedy}")
        return [message for message in messages if message.queue in queues]

    def _live_workers(self) -> Sequence[LiveWorker]:
        """The live workers, this one among them even if the ledger lacks it. Empty when the ledger
        cannot be read.
        """
        if time.monotonic() - self._workers_read >= 2.0:
            self._workers_read = time.monotonic()
            try:
                self._workers = [*live_workers(self.connection), self._describe()]
            except (LedgerError, *CONNECTION_ERRORS) as e:
                self._warn("the live workers are not known", e)
                self._workers = []
        return self._workers

    def _queues_to_count(self) -> set[str]:
        return queues_of(self._live_workers()) if self._queued else set()

    def _has_room(self) -> bool:
        return sum(self._outbox.waiting.values()) <= MOST_MESSAGES + 2 * self._queued

    def _warn(self, what: str, error: Exception | None = None) -> None:
        """Logs it, but not at every tick: it lasts until a person does something about it."""
        about = f"{what}: {type(error).__name__}" if error else what
        now = time.monotonic()
        if now - self._warned.get(about, float("-inf")) >= WARN_EVERY_S:
            self._warned[about] = now
            log.warning("reaper: %s", f"{about}: {error}" if error else what)


class _Run:
    """The reaper's memory of one active run."""

    def __init__(self, connection: Any, name: str) -> None:
        self.name = name
        self.ledger = Ledger(connection, name)
        self.left_until = 0.0
        """Monotonic time before which it is not looked at."""
        self.playable = True
        """True if some live worker has its tokenizer."""
        self._hashes = ("", "")

    def hashes(self) -> tuple[str, str]:
        """The run's tokenizer and chat template; empty while they are not pinned. Raises
        LedgerError.
        """
        if not all(self._hashes):
            meta = self.ledger.keys.meta
            names = ("tokenizer_hash", "template_hash")
            values = self.ledger.scripts.guard(meta, lambda: self.ledger.redis.hmget(meta, names))
            self._hashes = tuple(map(text, values))  # type: ignore[assignment]
        return self._hashes
