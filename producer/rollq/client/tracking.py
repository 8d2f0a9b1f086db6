"""Metrics of steps and evaluations go to an experiment tracker, from a thread of their own: one
that is slow or away holds no trainer up.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from queue import SimpleQueue
from typing import Protocol

from rollq.batch import Batch
from rollq.client.step_metrics import StepMetrics, evaluation_metrics, step_metrics
from rollq.errors import SettingsError
from rollq.evaluation.result import Result
from rollq.ledger.reader import LedgerReader
from rollq.ledger.versions import Versions
from rollq.servers.retry import RetryLoop
from rollq.snapshot.run import RunSnapshot, read_run

log = logging.getLogger("rollq")

GROUP = "rollq.trackers"
"""Entry points of trackers: each is called with the project, the number of rollouts and the id of
the run, and returns a Tracker.
"""
MOST_QUEUED = 64
"""Steps that may wait for the tracker. Those beyond are not sent."""
CLOSE_S = 60.0
"""Seconds for which the end waits for them. A tracker's own retries may take much longer."""
AWAY_S = 30.0
"""Seconds for which a step waits for a Redis that is away: the run's numbers are read there."""
END = "the end"


class Tracker(Protocol):
    """An experiment tracker. Its methods are called in one thread; what they raise is logged."""

    rollouts: int
    """Number of rollouts of each step that it wants as text."""

    def log(self, metrics: StepMetrics, /) -> None:
        """Sends the metrics of a step. After a restart a step may come a second time."""

    def close(self) -> None:
        """Ends the steps of this process."""


class Trackers:
    """The trackers of one client, which its consumers and evaluations share. They end with it."""

    def __init__(self, reader: LedgerReader, retry: RetryLoop) -> None:
        self._reader = reader
        self._retry = retry
        self._trackings: dict[object, Tracking] = {}
        self._lock = threading.Lock()

    def use(self, track: str | Tracker | None) -> "Tracking | None":
        """None for none. Raises SettingsError for a tracker that is not there, is none, or is asked
        for rollouts again in another number.
        """
        if track is None:
            return None
        with self._lock:
            key = parts(track)[:2] if isinstance(track, str) else id(track)
            tracking = self._trackings.setdefault(key, Tracking(track, self._reader, self._retry))
        if isinstance(track, str) and parts(track) != parts(str(tracking.track)):
            raise SettingsError(
                f"{tracking.track} and {track} are one tracker: ask for the same rollouts in both"
            )
        return tracking

    def close(self) -> None:
        """Waits until they have what was added, each for CLOSE_S at most."""
        for tracking in self._trackings.values():
            tracking.close()


class Tracking:
    """Tells a tracker of batches and evaluations."""

    def __init__(self, track: str | Tracker, reader: LedgerReader, retry: RetryLoop) -> None:
        """`track`: `NAME[:PROJECT[:ROLLOUTS]]`, or a tracker. Raises SettingsError for what is
        neither.
        """
        has_all = all(hasattr(track, name) for name in ("rollouts", "log", "close"))
        if not isinstance(track, str) and not has_all:
            raise SettingsError(
                f"track is NAME[:PROJECT[:ROLLOUTS]] or a Tracker, not {track!r:.100}"
            )
        self.track = track
        self._name = track if isinstance(track, str) else type(track).__name__
        self._open: Callable[[str], Tracker]
        if isinstance(track, str):
            self._open = named(track)
        else:
            self._open = lambda run: track
        self._reader = reader
        self._retry = retry
        self._tracker: Tracker | None = None
        self._before: RunSnapshot | None = None
        self._room = threading.Semaphore(MOST_QUEUED)
        self._acts: SimpleQueue[tuple[str, Callable[[], None]]] = SimpleQueue()
        # A daemon: what it may still wait for does not hold up the end of the program.
        self._thread = threading.Thread(target=self._run, name="rollq-tracker", daemon=True)
        self._closed = self._gave_up = False
        self._process = os.getpid()
        self._lock = threading.Lock()

    def add(self, batch: Batch) -> None:
        """Returns at once."""
        self._put(f"step {batch.step}", partial(self._log, replace(batch), time.time()))

    def add_result(self, result: Result) -> None:
        """Sends the metrics of an evaluation of a version. Returns at once."""
        self._put(f"the evaluation of {result.version}", partial(self._log_result, result))

    def _put(self, what: str, act: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return log.warning("%s is closed, so %s is not sent", self._name, what)
            if not self._thread.ident:
                self._thread.start()
            if self._room.acquire(blocking=False):
                return self._acts.put((what, act))
        log.warning("%s: %d steps wait for it, so %s is not sent", self._name, MOST_QUEUED, what)

    def flush(self) -> None:
        """Waits until the tracker has what was added, or for CLOSE_S."""
        done = threading.Event()
        with self._lock:
            if self._closed or not self._has_thread:
                return
            self._acts.put(("", done.set))
        if not done.wait(CLOSE_S):
            self._give_up()

    def close(self) -> None:
        """The same, and it ends."""
        with self._lock:
            over = self._closed or not self._has_thread
            self._closed = True
        if over:
            return
        self._acts.put((END, self._end))
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._give_up()

    @property
    def _has_thread(self) -> bool:
        """True if its thread was started, by this process: a fork has none."""
        return self._thread.ident is not None and os.getpid() == self._process

    def _give_up(self) -> None:
        """The steps that wait are not sent: a tracker that hung once is not waited for again."""
        self._closed = self._gave_up = True
        log.warning("%s took longer than %g s: some steps are not sent", self._name, CLOSE_S)

    def _run(self) -> None:
        what = ""
        while what != END and not self._gave_up:
            what, act = self._acts.get()
            try:
                self._retry(act, AWAY_S)
            except Exception as e:  # a tracker may raise anything, and training goes on
                log.warning("%s did not take %s: %s: %s", self._name, what, type(e).__name__, e)
            if what:
                self._room.release()

    def _log(self, batch: Batch, at: float) -> None:
        run = read_run(self._reader, at)
        tracker = self._ensure_tracker()
        tracker.log(step_metrics(batch, run, self._before, tracker.rollouts))
        self._before = run

    def _log_result(self, result: Result) -> None:
        version = result.version or ""
        step = Versions(self._reader.redis, result.run).steps([version]).get(version)
        if step is None:
            raise SettingsError(
                f"it is not known which step {version!r} is: publish it, or name "
                "the step by a number"
            )
        self._ensure_tracker().log(evaluation_metrics(result, step))

    def _ensure_tracker(self) -> Tracker:
        if self._tracker is None:  # the run's beginning tells runs of one name apart
            self._tracker = self._open(f"{self._reader.run}-{int(self._reader.began())}")
        return self._tracker

    def _end(self) -> None:
        if self._tracker:
            self._tracker.close()


def named(text: str) -> Callable[[str], Tracker]:
    """A function that opens the tracker `NAME[:PROJECT[:ROLLOUTS]]` for the id of a run. Raises
    SettingsError.
    """
    name, project, rollouts = parts(text)
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise SettingsError(
            f"there is no tracker {name}: {', '.join(sorted(points)) or 'none'} can be named"
        )
    return partial(points[name].load(), project, rollouts)


def parts(text: str) -> tuple[str, str, int]:
    """Name, project and number of rollouts of `NAME[:PROJECT[:ROLLOUTS]]`. Raises SettingsError."""
    name, project, rollouts = [*text.split(":"), "", ""][:3]
    if not name or text.count(":") > 2 or not (rollouts or "0").isdecimal():
        raise SettingsError(
            f"a tracker is NAME[:PROJECT[:ROLLOUTS]], for example wandb:shop:4, not {text!r}"
        )
    return name, project or "rollq", int(rollouts or 0)
