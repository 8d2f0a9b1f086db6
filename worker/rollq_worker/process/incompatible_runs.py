"""Remembers the runs that this worker cannot play, so that it gives their jobs back unclaimed.

Such a run has another tokenizer, another schema, or files that are not here, or needs a service
that is away.
"""

import logging
import threading
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)

SKIP_S = 60.0
"""Seconds for which nothing is claimed of a run after one of its jobs could not be played."""
AWAY_SKIP_S = 10.0
"""The same for a run that only lacks a service, which may come back soon."""
REPORTS = 2
"""Times these seconds a run is reported. The next try comes before they are over."""


class IncompatibleRuns:
    """The runs of one worker, for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorded: dict[str, tuple[float, float, str]] = {}
        """Monotonic time at which a job of each run was met last, the seconds for which the run is
        skipped, and the reason why it cannot be played.
        """

    def record(self, run: str, reason: str, skip_s: float = SKIP_S) -> None:
        """Records a job that cannot be played. Logged once for each run."""
        with self._lock:
            is_new = run not in self.reasons()
            self._recorded[run] = (time.monotonic(), skip_s, reason)
        if is_new:
            log.error("this worker does not play run %s: %s", run, reason)

    def skips(self, run: str) -> bool:
        """True while nothing is claimed of the run."""
        recorded_at, skip_s, _ = self._recorded.get(run, (0.0, float("-inf"), ""))
        return time.monotonic() - recorded_at < skip_s

    def reasons(self) -> Mapping[str, str]:
        """The runs that were recorded lately, with the reason."""
        now = time.monotonic()
        return {
            run: reason
            for run, (recorded_at, skip_s, reason) in self._recorded.copy().items()
            if now - recorded_at < REPORTS * skip_s
        }
