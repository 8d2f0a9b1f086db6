"""Ends a worker whose interpreter stays locked.

One operation of foreign code (`9**9**9` is one) may hold the interpreter's lock for hours. Meanwhile no Python thread
and no signal handler runs. faulthandler's own thread needs no lock. Unless it is postponed in time, it writes every
thread's stack to stderr and ends the process with exit code 1.
"""

import faulthandler
import threading
import time

FREEZE_LIMIT_S = 120.0
"""Seconds: much longer than a lease, so that a slow worker is left alone. Time for which the process was suspended
counts too."""


def start() -> None:
    """Watch from now on, until the process ends."""
    threading.Thread(target=_postpone, name="rollq-freeze-watchdog", daemon=True).start()


def _postpone() -> None:
    while True:
        faulthandler.dump_traceback_later(FREEZE_LIMIT_S, exit=True)
        time.sleep(FREEZE_LIMIT_S / 10)
