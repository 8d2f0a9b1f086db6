"""Ends a worker whose interpreter is held for ever: nothing of its own could.

One operation of foreign code (`9**9**9` is one) may keep the interpreter's lock for hours: no thread gets a turn, no
heartbeat, no handler of signals. The thread that faulthandler starts needs no turn. Unless it is put off in time, it
writes to stderr where every thread was, and ends the process with exit code 1.
"""

import faulthandler
import threading
import time

FROZEN_S = 120.0
"""Long past every lease: what is only slow is left alone, and what was stopped for less. No clock here knows stops."""


def watch() -> None:
    """From now on, until the process ends."""
    threading.Thread(target=_put_off, name="rollq-frozen", daemon=True).start()


def _put_off() -> None:
    while True:
        faulthandler.dump_traceback_later(FROZEN_S, exit=True)
        time.sleep(FROZEN_S / 10)
