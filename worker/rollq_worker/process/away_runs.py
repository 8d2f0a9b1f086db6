"""The runs whose server of a cluster is away or takes no writes, and what is told to it once it
does.

Each server has some of the runs. A slot that waited for one of them would be lost to the runs of
all others, so the calls wait in a thread of their own, one for each run. It knows nothing of what
is called.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from rollq.ledger.constants import CONFIRMED_S
from rollq.servers.connection import RetryLoop
from rollq_worker.failures import Drained

log = logging.getLogger(__name__)

Call = Callable[[], object]


class AwayRuns:
    def __init__(self, pause: Callable[[float], object]) -> None:
        """`pause` waits that many seconds, and raises Drained once the worker stops."""
        self._retry = RetryLoop(wait=pause, relogin=True)
        self._calls: dict[str, deque[Call]] = {}
        self._lock = threading.Lock()

    def __contains__(self, run: str) -> bool:
        """Whether calls wait for the run's server."""
        return run in self._calls

    def later(self, run: str, call: Call, why: object = "its Redis is away") -> None:
        """Make the call once the run's server answers and takes writes, after those that wait for
        it already.
        """
        with self._lock:
            if run not in self._calls:
                text = (
                    "run %s waits: %s. What this worker has of it goes back once its Redis takes it"
                )
                log.warning(text, run, str(why).rstrip("."))
                threading.Thread(
                    target=self._make, args=(run,), name="rollq-away", daemon=True
                ).start()
                self._calls[run] = deque()
            self._calls[run].append(call)

    def _make(self, run: str) -> None:
        while call := self._next(run):
            try:
                self._retry(call)
            except Drained:
                with self._lock:
                    left = 1 + len(self._calls.pop(run))
                log.warning(
                    "run %s: %d jobs were not handed back: they come again within %g s",
                    run,
                    left,
                    CONFIRMED_S,
                )
                return
            except Exception as e:  # what is left waits for no other call
                log.warning("run %s: %s: %s", run, type(e).__name__, e)

    def _next(self, run: str) -> Call | None:
        with self._lock:
            if calls := self._calls[run]:
                return calls.popleft()
            del self._calls[run]
            return None
