"""The metrics of each step go to an experiment tracker, from a thread of their own: one that is slow or away holds no
trainer up."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from queue import SimpleQueue
from typing import Protocol

from rollq.batch import Batch
from rollq.client.step_metrics import StepMetrics, step_metrics
from rollq.errors import SettingsError
from rollq.ledger.reader import LedgerReader
from rollq.snapshot.run import RunSnapshot, read_run

log = logging.getLogger("rollq")

GROUP = "rollq.trackers"
"""Entry points of trackers: each is called with the project, the id of the run, and the number of rollouts, and returns
a Tracker."""
MOST = 64
"""Steps that may wait for the tracker. Those beyond are not sent."""
CLOSE_S = 60.0
"""Seconds for which the end waits for them. A tracker's own retries may take much longer."""
END = "the end"


class Tracker(Protocol):
    """An experiment tracker. Its methods are called in one thread; what they raise is logged."""

    rollouts: int
    """How many rollouts of each step it wants as text."""

    def log(self, metrics: StepMetrics, /) -> None:
        """Send the metrics of a step. After a restart a step may come a second time."""

    def close(self) -> None:
        """No more steps come from this process."""


class Tracking:
    """Tells a tracker of the batches of one consumer."""

    def __init__(self, track: str | Tracker, reader: LedgerReader) -> None:
        """`track`: `NAME[:PROJECT[:ROLLOUTS]]`, or a tracker. Raises SettingsError for one that is not there."""
        self._named = track if isinstance(track, str) else type(track).__name__
        self._open: Callable[[str], Tracker] = named(track) if isinstance(track, str) else lambda run: track
        self._reader = reader
        self._tracker: Tracker | None = None
        self._before: RunSnapshot | None = None
        self._room = threading.Semaphore(MOST)
        self._acts: SimpleQueue[tuple[str, Callable[[], None]]] = SimpleQueue()
        # A daemon: what it may still wait for does not hold up the end of the program.
        self._thread = threading.Thread(target=self._run, name="rollq-tracker", daemon=True)
        self._closed = False

    def add(self, batch: Batch) -> None:
        """Returns at once."""
        if not self._thread.ident:
            self._thread.start()
        if self._room.acquire(blocking=False):
            self._acts.put((f"step {batch.step}", partial(self._log, replace(batch), time.time())))
        else:
            log.warning("%s: %d steps wait for it, so step %d is not sent", self._named, MOST, batch.step)

    def close(self) -> None:
        """Waits until the tracker has what was added, or for CLOSE_S."""
        if self._closed or not self._thread.ident:
            return
        self._acts.put((END, self._end))
        self._thread.join(CLOSE_S)
        self._closed = True
        if self._thread.is_alive():
            log.warning("%s took longer than %g s: some steps are not sent", self._named, CLOSE_S)

    def _run(self) -> None:
        what = ""
        while what != END and not self._closed:
            what, act = self._acts.get()
            try:
                act()
            except Exception as e:  # a tracker may raise anything, and training goes on
                log.warning("%s did not take %s: %s: %s", self._named, what, type(e).__name__, e)
            self._room.release()

    def _log(self, batch: Batch, at: float) -> None:
        run = read_run(self._reader, at)
        if self._tracker is None:  # the run's beginning tells runs of one name apart
            self._tracker = self._open(f"{run.run}-{int(self._reader.began())}")
        self._tracker.log(step_metrics(batch, run, self._before, self._tracker.rollouts))
        self._before = run

    def _end(self) -> None:
        if self._tracker:
            self._tracker.close()


def named(text: str) -> Callable[[str], Tracker]:
    """What opens the tracker `NAME[:PROJECT[:ROLLOUTS]]` for the id of a run. Raises SettingsError."""
    name, project, rollouts = parts(text)
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise SettingsError(f"there is no tracker {name}: {', '.join(sorted(points)) or 'none'} can be named")
    return partial(points[name].load(), project, rollouts)


def parts(text: str) -> tuple[str, str, int]:
    """Name, project and number of rollouts of `NAME[:PROJECT[:ROLLOUTS]]`. Raises SettingsError."""
    name, project, rollouts = [*text.split(":"), "", ""][:3]
    if not name or text.count(":") > 2 or not (rollouts or "0").isdecimal():
        raise SettingsError(f"a tracker is NAME[:PROJECT[:ROLLOUTS]], for example wandb:shop:4, not {text!r}")
    return name, project or "rollq", int(rollouts or 0)
