"""The end of a client."""

from typing import NoReturn

from rollq.errors import ClientClosed


class Closed:
    """Takes the place of what a closed client worked with: each use of it raises ClientClosed."""

    def __init__(self, run: str) -> None:
        self._run = run

    def __getattr__(self, name: str) -> NoReturn:
        raise ClientClosed(f"the client of run {self._run} is closed: make another")
