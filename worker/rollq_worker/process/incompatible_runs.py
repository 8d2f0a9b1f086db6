"""Remembers the runs that this worker cannot play, so that it gives their jobs back unclaimed.

Such a run has another tokenizer, another schema, or files that are not here.
"""

import logging
import threading
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)

SKIP_S = 60.0
"""Seconds for which nothing is claimed of a run after one of its jobs could not be played."""
REPORT_S = 2 * SKIP_S
"""Seconds for which a run is reported. The next try comes before they are over."""


class IncompatibleRuns:
    """The runs of one worker, for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorded: dict[str, tuple[float, str]] = {}
        """When a job of each run was met last (monotonic time), and why it cannot be played."""

    def record(self, run: str, reason: str) -> None:
        """Record a job that cannot be played. Logged once for each run."""
        with self._lock:
            is_new = run not in self.reasons()
            self._recorded[run] = (time.monotonic(), reason)
        if is_new:
            log.error("this worker does not play run %s: %s", run, reason)

    def skips(self, run: str) -> bool:
        """True while nothing is claimed of the run."""
        recorded_at, _ = self._recorded.get(run, (float("-inf"), ""))
        return time.monotonic() - recorded_at < SKIP_S

    def reasons(self) -> Mapping[str, str]:
        """The runs that were recorded lately, with the reason."""
        oldest = time.monotonic() - REPORT_S
        recorded = self._recorded.copy().items()
        return {run: reason for run, (recorded_at, reason) in recorded if recorded_at > oldest}
