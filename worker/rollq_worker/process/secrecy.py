"""Keeps other programs of the worker's user from reading the worker: agent commands, and servers of
tools.

They have the user's rights, so its files stay open to them. Root may read everything.
"""

import ctypes
import os
import sys


def hide_addresses() -> None:
    """Children are not given the addresses of Redis and the broker, which have been read and may
    hold a password.
    """
    for name in ("ROLLQ_REDIS_URL", "ROLLQ_BROKER_URL"):
        os.environ.pop(name, None)


def hide_memory() -> None:
    """Programs of this user cannot read this process: its memory, and the variables that it was
    started with. It leaves no core file, and py-spy and debuggers need root. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE (linux/prctl.h)
