"""Counts where this worker's episodes spend their time, without a line on their way.

A thread looks at all attempts once a second, and each look stands for the time since the last one.
An episode that is in none of its waits is in Python code, where one thread runs and the others wait
for the interpreter. A thread whose wait has just ended waits for the interpreter as well: for as
long as this thread, which is then late itself.
"""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence

from rollq.errors import FailureClass
from rollq.ledger.scripts import Scripts
from rollq.ledger.workers.time_spent import WAITS, report_time
from rollq_worker.engine.pool import Traffic
from rollq_worker.process.attempts.attempt import Attempt

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks."""
REPORT_S = 5.0
"""Seconds between two reports to the ledger."""
OF_CALLS = {
    FailureClass.ENV: "environment",
    FailureClass.REWARD: "environment",
    FailureClass.AGENT: "agent",
    FailureClass.TEACHER: "teacher",
}
"""The one of WAITS that a call into foreign code is, by the class that its failure has."""


class TimeSpent:
    """The seconds of this worker's episodes, by run and by `rollq.ledger.workers.time_spent.WAITS`.

    `held` gives the attempts of now, and `traffic` has their requests.
    """

    def __init__(
        self, worker: str, held: Callable[[], Sequence[Attempt]], traffic: Traffic
    ) -> None:
        self._traffic = traffic
        self._worker = worker
        self._held = held
        self._answered = 0
        self._ledgers: dict[str, Scripts] = {}
        self.seconds: defaultdict[str, dict[str, float]] = defaultdict(
            lambda: dict.fromkeys(WAITS, 0.0)
        )
        """Seconds by run and by the thing that is waited for."""
        self._unreported: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-time-spent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Reports a last time."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(1.0)  # Redis may be away

    def count(self, passed_s: float, late_s: float) -> None:
        """Counts the `passed_s` seconds since the last look, which came `late_s` seconds
        too late.
        """
        held = self._held()
        asking = self._traffic.asking
        waits = Counter((attempt.job.run, _wait(attempt, asking)) for attempt in held)
        by_wait: Counter[str] = Counter()
        for (_, wait), attempts in waits.items():
            by_wait[wait] += attempts
        answered = self._answered
        self._answered = self._traffic.answered
        newly_answered = self._answered - answered
        woken_s = min(passed_s, late_s * newly_answered / max(1, by_wait["engine"]))
        running_s = passed_s / max(1, by_wait["tokens"])
        share = {
            "engine": (passed_s - woken_s, woken_s),
            "tokens": (running_s, passed_s - running_s),
        }
        self._ledgers.update((attempt.job.run, attempt.ledger.scripts) for attempt in held)
        for (run, wait), attempts in waits.items():
            in_wait_s, interpreter_s = share.get(wait, (passed_s, 0.0))
            self._unreported.add(run)
            self.seconds[run][wait] += attempts * in_wait_s
            self.seconds[run]["interpreter"] += attempts * interpreter_s

    def report(self) -> None:
        """Tells the ledger of each run. A report has all since the start, so one that failed costs
        nothing.
        """
        for run in sorted(self._unreported):
            try:
                report_time(self._ledgers[run], self._worker, self.seconds[run])
                self._unreported.discard(run)
            except Exception as e:  # of Redis: the next report has all
                log.info("run %s: where the time went was not reported: %s", run, e)

    def _loop(self) -> None:
        looked = reported = slept = time.monotonic()
        while not self._end.wait(LOOK_S):
            now = time.monotonic()
            self.count(now - looked, max(0.0, now - slept - LOOK_S))
            looked = now
            if now - reported >= REPORT_S:
                self.report()
                reported = now
            slept = time.monotonic()
        self.report()


def _wait(attempt: Attempt, asking: Collection[str]) -> str:
    """The one of WAITS that the attempt's thread is in."""
    if attempt.job.id in asking:
        return "engine"
    call = attempt.time_limits.current
    if call is not None:
        # users, contexts and summaries ask a model
        return OF_CALLS.get(call.failure.failure, "user")
    what, _ = attempt.waits_for
    return "ledger" if what == "redis" else "tokens"
