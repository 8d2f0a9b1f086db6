"""What a client and its consumers do when they are closed, and afterwards."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from rollq.errors import ClientClosed

CLOSE_S = 2.0
"""Seconds that closing waits for Redis."""


class Closed:
    """In place of what a closed client worked with: each use of it raises ClientClosed."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise ClientClosed(f"{self._what} is closed: make another")


def briefly(call: Callable[[], object]) -> bool:
    """Whether the call returned within CLOSE_S. Raises nothing: Redis may be away."""
    done = threading.Event()

    def run() -> None:
        with suppress(Exception):
            call()
            done.set()

    thread = threading.Thread(target=run, name="rollq-close", daemon=True)
    thread.start()
    thread.join(CLOSE_S)
    return done.is_set()
