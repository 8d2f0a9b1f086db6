"""Shutdown: a signal stops the worker within 5 seconds, and other workers go on with its jobs.

Python runs a signal handler only when its main thread gets to it, which may be never. So the C
handler writes the signal's number into a pipe, and a watchdog thread reads it and acts. Episodes
stop at their next turn. Running generations are aborted on the engine, so that their partial tokens
are journaled. Jobs that still run after RELEASE_AFTER_S are released, and the process exits
whatever its threads do.

A worker whose interpreter stays locked hears no signal, and ends by itself.
"""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

RELEASE_AFTER_S = 3.0
EXIT_AFTER_S = 4.2
"""Seconds to the exit, also with Redis down. Then nothing can be released, and the leases expire.
"""

FREEZE_LIMIT_S = 120.0
"""Seconds: much longer than a lease, so that a slow worker is left alone. Time for which the
process was suspended counts too.
"""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
LEAVING = "second signal, leaving at once; leases expire by themselves"
REQUESTED = 0
"""Written to the pipe in place of a signal's number when the worker itself asks to stop."""


class Shutdown:
    """The signal handlers of a worker process and the watchdog that bounds its exit."""

    def __init__(self, name: str, draining: threading.Event) -> None:
        self._name = name
        self.draining = draining
        self.exit_code = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # set_wakeup_fd requires it
        self._stop_consuming: Callable[[], None] | None = None
        self._end_engine_waits: Callable[[], None]
        self._release: Callable[[], None]

    def install(self) -> None:
        """Handles signals from now on. Before `ready` no jobs are held, and a signal ends the
        process at once.
        """
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self._watch, name="rollq-watchdog", daemon=True).start()

    def ready(
        self,
        *,
        stop_consuming: Callable[[], None],
        end_engine_waits: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """Begins to serve: there may be jobs. The arguments are the calls that stop them, in this
        order.
        """
        self._end_engine_waits = end_engine_waits
        self._release = release
        self._stop_consuming = stop_consuming

    def request(self, exit_code: int) -> None:
        """Stops without a signal."""
        self.exit_code = exit_code
        os.write(self._writer, bytes([REQUESTED]))

    def _watch(self) -> None:
        stopping = False
        while True:
            (number,) = os.read(self._reader, 1)
            if number != REQUESTED and number not in SIGNALS:
                continue
            if not stopping:
                stopping = True
                if not _started(self._stop, "rollq-stop"):
                    self._stop()
                if number != REQUESTED:  # behind the start: stderr may be broken, or full
                    self._say("stopping; running jobs go back to the queue")
            elif number != REQUESTED:
                self._say(LEAVING)
                os._exit(1)

    def _say(self, what: str) -> None:
        with suppress(OSError):
            os.write(2, f"rollq worker {self._name}: {what}\n".encode())

    def _stop(self) -> None:
        start = time.monotonic()
        self.draining.set()
        if self._stop_consuming is None:
            os._exit(self.exit_code)
        self._stop_consuming()
        # Each gets its own thread, because the engine may not answer and a release waits for half a
        # minute while Redis is down.
        _started(self._end_engine_waits, "rollq-end-engine-waits")
        time.sleep(RELEASE_AFTER_S)
        _started(self._release_and_exit, "rollq-release")
        time.sleep(max(0.0, EXIT_AFTER_S - (time.monotonic() - start)))
        os._exit(self.exit_code)

    def _release_and_exit(self) -> None:
        self._release()
        os._exit(self.exit_code)


def _started(target: Callable[[], None], name: str) -> bool:
    """False where the process may have no further thread: then it still exits in time."""
    with suppress(RuntimeError):
        threading.Thread(target=target, name=name, daemon=True).start()
        return True
    return False


def end_when_frozen() -> None:
    """Begins a watch that ends the process with exit code 1 once no Python thread has run for
    FREEZE_LIMIT_S.

    One operation of foreign code (`9**9**9` is one) may hold the interpreter's lock for hours.
    faulthandler's own thread needs no lock: unless it is postponed in time, it writes every
    thread's stack to stderr and ends the process.
    """
    threading.Thread(target=_postpone, name="rollq-freeze-watchdog", daemon=True).start()


def _postpone() -> None:
    while True:
        faulthandler.dump_traceback_later(FREEZE_LIMIT_S, exit=True)
        time.sleep(FREEZE_LIMIT_S / 10)
