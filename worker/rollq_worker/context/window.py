"""A sliding window: the first prompt, and the last whole turns."""

from collections.abc import Sequence
from dataclasses import dataclass

from rollq.events import Message


@dataclass(frozen=True, slots=True)
class Window:
    """Implements rollq.env.ContextHook. A turn is kept with all its replies, so no result is
    without its call.
    """

    over: int
    """Most tokens of a trace that is left as it is."""
    turns: int
    """Number of turns that are kept."""

    def __call__(
        self, opening: Sequence[Message], messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if tokens <= self.over or len(turns) <= self.turns:
            return None
        return [*opening, *messages[turns[-self.turns] :]]
