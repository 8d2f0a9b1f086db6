"""Requests in the background, seen to be running before a test goes on."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import requests

from tests.contract.conftest import Server
from tests.waiting import until

LONG = {"max_new_tokens": 4000, "ignore_eos": True}
"""Seconds of work on both servers."""


class BackgroundRequests:
    """Sent to one server, which is reset at the end."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pool = ThreadPoolExecutor(16)

    def __enter__(self) -> "BackgroundRequests":
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.reset()
        self.pool.shutdown()

    def start(self, rid: str, **sampling: Any) -> "Future[requests.Response]":
        return self.pool.submit(self.server.sample, rid, **sampling)

    def start_long(self, rid: str) -> "Future[requests.Response]":
        """Wait until it runs."""
        reply = self.start(rid, **LONG)
        self.wait_for(1)
        return reply

    def fill(self, queued: int = 0) -> None:
        """Have the four requests that a slow server runs at once, and so many in its queue."""
        for number in range(4):
            self.start(f"running-{number}", **LONG)
        self.wait_for(4)
        for number in range(queued):
            self.start(f"queued-{number}", **LONG)
        self.wait_for(4, queued)

    def wait_for(self, running: int, queued: int = 0) -> None:
        until(lambda: self.server.load() == (running, queued))
