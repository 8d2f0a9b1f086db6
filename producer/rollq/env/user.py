"""The user simulator that an environment talks to."""

from typing import Protocol

STOP_MARKER = "###STOP###"
"""A user's message that contains it ends the conversation (tau-bench's convention)."""


class User(Protocol):
    """A user simulator for one episode. Raises UserFailure. A reply that contains STOP_MARKER ends
    the conversation.
    """

    def open(self) -> str:
        """The user's first message. Called once."""
        ...

    def reply(self, message: str) -> str:
        """The answer to the agent's message."""
        ...

    def recall(self, heard: str | None, reply: str) -> None:
        """Restore one exchange of an earlier attempt, instead of `open` or `reply`.

        The user heard `heard` (None: it opened the conversation) and answered `reply`.
        """
        ...
