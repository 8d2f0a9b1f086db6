"""The runs that this worker cannot play, and how rarely it takes messages because of them.

All workers of a queue share one list of messages, and only the message tells its run. So a worker
that meets a job for others gives it back at once and then takes no message at all for a moment,
which grows while it meets nothing else: the others get the job. It knows nothing of Celery.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

FIRST_REST_S, LONGEST_REST_S = 0.5, 5.0
"""Seconds for which a worker takes no message after one that is for others. Each such rest is twice
the one before, until a job is played.
"""
LEAVE_S = 60.0
"""Seconds for which nothing is claimed of a run after one of its jobs turned out to be for others.
"""
TOLD_S = 120.0
"""Seconds for which a run counts as met. A rest and a look at a run that is left alone are shorter.
"""


class Misfits:
    def __init__(self, pause: Callable[[float], object]) -> None:
        """`pause` waits that many seconds, or until the worker stops."""
        self.on_rest: Callable[[bool], object] = lambda rests: None
        """Told when the worker may take no more messages, and when it may again."""
        self._pause = pause
        self._lock = threading.Lock()
        self._met: dict[str, tuple[float, str]] = {}
        """When each run was met last, and why it is for others."""
        self._left: dict[str, float] = {}
        """Runs that nothing is claimed of, and until when (monotonic time)."""
        self._rest_s = FIRST_REST_S
        self._until = 0.0
        self._resting = 0

    def leaves(self, run: str) -> bool:
        """Whether nothing is claimed of the run for now."""
        return self._left.get(run, 0.0) > time.monotonic()

    def meet(self, run: str, why: str, *, leave: bool = False) -> None:
        """A job of the run is for other workers. Logged when it was not met lately."""
        now = time.monotonic()
        with self._lock:
            before = self.met()
            self._met = {name: met for name, met in self._met.items() if name in before} | {
                run: (now, why)
            }
            if leave:
                self._left = {name: until for name, until in self._left.items() if until > now} | {
                    run: now + LEAVE_S
                }
        if run not in before:
            log.error("this worker does not play run %s: %s", run, why)

    def met(self) -> Mapping[str, str]:
        """The runs that were met lately, and why they are for others."""
        now = time.monotonic()
        return {run: why for run, (at, why) in self._met.items() if at + TOLD_S > now}

    def rest(self) -> None:
        """Take no message for a moment. Threads that come together rest together."""
        with self._lock:
            now = time.monotonic()
            if now >= self._until:
                self._until = now + self._rest_s
                self._rest_s = min(LONGEST_REST_S, 2 * self._rest_s)
            seconds = self._until - now
            self._resting += 1
            self.on_rest(True)
        try:
            self._pause(seconds)
        finally:
            with self._lock:
                self._resting -= 1
                if not self._resting:
                    self.on_rest(False)

    def played(self) -> None:
        """A job was for this worker."""
        self._rest_s = FIRST_REST_S
