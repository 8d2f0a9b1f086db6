"""The forms in which agent programs may ask for turns. Each is a module with the functions of
`Dialect`.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from rollq_worker.agents.traces import Turn
from rollq_worker.agents.turn_request import RequestRefused, TurnRequest


class Dialect(Protocol):
    """Reads requests of one form, and writes replies to them."""

    def read(self, body: Any) -> TurnRequest:
        """The request in a JSON body. Raises RequestRefused, which names the fault or the missing
        support.
        """
        ...

    def reply(self, turn: Turn, request: TurnRequest) -> dict[str, Any]:
        """The body of a reply."""
        ...

    def stream(self, turn: Turn, request: TurnRequest) -> Iterator[bytes]:
        """The reply as server-sent events. The turn is whole when the stream begins."""
        ...

    def error(self, refused: RequestRefused) -> dict[str, Any]:
        """The body of an error."""
        ...
