"""Calls to the ledgers of several runs, of which none waits for another run's server.

A call waits for half a minute while its server is away, and each of a cluster's servers has some of the runs.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 1.0
"""Most seconds that the caller waits for the calls. Those that take longer go on without it."""


class PerRun:
    """One call at a time for each run, in a thread of its own."""

    def __init__(self, name: str) -> None:
        """`name`: of the threads."""
        self._name = name
        self._threads: dict[str, threading.Thread] = {}

    def __call__(self, runs: Mapping[str, T], call: Callable[[T], object]) -> None:
        """Make the call for each of these runs, except for those whose last call has not ended. It raises nothing."""
        until = time.monotonic() + WAIT_S
        self._threads = {run: thread for run, thread in self._threads.items() if thread.is_alive()}
        started = {
            run: threading.Thread(target=call, args=(what,), name=self._name, daemon=True)
            for run, what in runs.items()
            if run not in self._threads
        }
        self._threads |= started
        for thread in started.values():
            thread.start()
        for thread in started.values():
            thread.join(max(0.0, until - time.monotonic()))
