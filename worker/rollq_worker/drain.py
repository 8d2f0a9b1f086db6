"""Drain: SIGTERM, SIGINT or SIGQUIT stops the worker within 5 seconds and gives its jobs to the others.

The handler only sets flags and starts the watchdog: it runs inside whatever the main thread was doing, so it takes no
lock and logs nothing. Episodes stop at their next turn boundary; running generations are aborted on the engine, so that
their partial tokens are journaled. What still runs after RELEASE_AFTER_S is released under it, and the process leaves
whatever its threads do.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

RELEASE_AFTER_S = 3.0
EXIT_AFTER_S = 4.5
"""Even with Redis down, when nothing can be released: the leases expire then."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Drain:
    """The signal handlers of a worker process and the watchdog that bounds its exit."""

    def __init__(
        self,
        draining: threading.Event,
        *,
        stop_consuming: Callable[[], None],
        abort_generations: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self.draining = draining
        self._stop_consuming = stop_consuming
        self._abort_generations = abort_generations
        self._release = release

    def install(self) -> None:
        """Replace the handlers; Celery's own lose a second SIGINT and any SIGQUIT on the threads pool."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.draining.is_set():
            os.write(2, b"rollq worker: second signal, leaving at once; leases expire by themselves\n")
            os._exit(1)
        os.write(2, b"rollq worker: stopping; running jobs go back to the queue\n")
        self.draining.set()
        self._stop_consuming()
        threading.Thread(target=self._watch, name="rollq-watchdog", daemon=True).start()

    def _watch(self) -> None:
        start = time.monotonic()
        threading.Thread(target=self._abort_generations, name="rollq-abort", daemon=True).start()
        time.sleep(RELEASE_AFTER_S)
        # In a thread of its own: with Redis down a release retries for a minute.
        threading.Thread(target=self._leave, name="rollq-release", daemon=True).start()
        time.sleep(max(0.0, EXIT_AFTER_S - (time.monotonic() - start)))
        os._exit(0)

    def _leave(self) -> None:
        self._release()
        os._exit(0)
