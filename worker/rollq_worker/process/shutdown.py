"""Drain: a signal stops the worker within 5 seconds and gives its jobs to the others.

Python runs a handler only when its main thread gets to it, which may be never: in a call that blocks, or just before
one. So the signals' numbers come through a wakeup pipe, written by the C handler itself, to the watchdog, a thread that
reads it and does everything. Episodes stop at their next turn boundary; running generations are aborted on the engine,
so that their partial tokens are journaled. What still runs after RELEASE_AFTER_S is released under it, and the process
leaves whatever its threads do.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

RELEASE_AFTER_S = 3.0
EXIT_AFTER_S = 4.2
"""Even with Redis down, when nothing can be released: the leases expire then."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_OWN_REASON = 0
"""In the pipe, instead of a signal's number."""


class Drain:
    """The signal handlers of a worker process and the watchdog that bounds its exit."""

    def __init__(self, draining: threading.Event) -> None:
        self.draining = draining
        self.exit_code = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # as set_wakeup_fd wants it
        self._stop_consuming: Callable[[], None] | None = None
        self._interrupt: Callable[[], None]
        self._release: Callable[[], None]

    def install(self) -> None:
        """Handle signals from now on. Until `ready` is called nothing is held, and a signal ends the process."""
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self._watch, name="rollq-watchdog", daemon=True).start()

    def ready(
        self, *, stop_consuming: Callable[[], None], interrupt: Callable[[], None], release: Callable[[], None]
    ) -> None:
        """From now on there may be jobs. `interrupt` ends what the episodes wait for; `release` gives up the rest."""
        self._interrupt, self._release = interrupt, release
        self._stop_consuming = stop_consuming

    def begin(self, exit_code: int) -> None:
        """Stop for a reason of our own."""
        self.exit_code = exit_code
        os.write(self._writer, bytes([_OWN_REASON]))

    def _watch(self) -> None:
        stopping = False
        while True:
            (number,) = os.read(self._reader, 1)
            if number != _OWN_REASON and number not in SIGNALS:
                continue
            if not stopping:
                stopping = True
                if number != _OWN_REASON:
                    os.write(2, b"rollq worker: stopping; running jobs go back to the queue\n")
                threading.Thread(target=self._stop, name="rollq-stop", daemon=True).start()
            elif number != _OWN_REASON:
                os.write(2, b"rollq worker: second signal, leaving at once; leases expire by themselves\n")
                os._exit(1)

    def _stop(self) -> None:
        start = time.monotonic()
        self.draining.set()
        if self._stop_consuming is None:
            os._exit(self.exit_code)
        self._stop_consuming()
        # Each in a thread of its own: the engine may not answer, and with Redis down a release retries for a minute.
        threading.Thread(target=self._interrupt, name="rollq-interrupt", daemon=True).start()
        time.sleep(RELEASE_AFTER_S)
        threading.Thread(target=self._leave, name="rollq-release", daemon=True).start()
        time.sleep(max(0.0, EXIT_AFTER_S - (time.monotonic() - start)))
        os._exit(self.exit_code)

    def _leave(self) -> None:
        self._release()
        os._exit(self.exit_code)
