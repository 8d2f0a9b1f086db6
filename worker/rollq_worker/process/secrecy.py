"""Keeps other programs of the worker's user from reading the worker: agent commands, and servers of tools.

They have the user's rights, so its files stay open to them. Root may read everything.
"""

import ctypes
import os
import sys

PR_SET_DUMPABLE = 4  # linux/prctl.h
ADDRESSES = ("ROLLQ_REDIS_URL", "ROLLQ_BROKER_URL")
"""Variables that may hold a password, and that no child process needs."""


def hide_addresses() -> None:
    """Children are not given the addresses of Redis and the broker, which have been read."""
    for name in ADDRESSES:
        os.environ.pop(name, None)


def hide_memory() -> None:
    """Programs of this user cannot read this process: its memory, and the variables that it was started with. It leaves
    no core file, and py-spy and debuggers need root. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
