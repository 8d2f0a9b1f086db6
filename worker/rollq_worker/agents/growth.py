"""The size of the journal of an agent program's episode, and its limits.

It knows events only.
"""

import json

from rollq.events import Acted, Event, Observed, Prompt, Replied, Sampled, Stop
from rollq.job import Json
from rollq_worker.agents.turn_request import RequestRefused

STEPS = 10_000
"""Number of an episode's steps."""
LARGEST_JOURNAL = 64 << 20
"""Size of an episode's events in memory, about in bytes, at which no turn and no step may begin."""


class Spent(RequestRefused):
    """A request for which the journal has no room. `stop` is how an episode ends that cannot go on
    without.
    """

    def __init__(self, message: str, code: str, stop: Stop) -> None:
        super().__init__(message, code=code)
        self.stop = stop


class Growth:
    """The number of steps and the size of one journal."""

    def __init__(self) -> None:
        self._steps = self._size = 0

    def add(self, event: Event) -> None:
        texts: list[Json] = []
        match event:
            case Prompt():
                texts = [list(event.messages), list(event.tools)]
            case Sampled():
                texts = [dict(event.asked)]
            case Observed():
                texts = [event.message, list(event.replies)]
            case Replied():
                texts = [event.text]
            case Acted():
                texts = [event.text, dict(event.action)]
                self._steps += 1
        text = json.dumps(texts, ensure_ascii=False)
        # An element of a list or of an object takes about 64 bytes in memory, a token with its
        # logprob 12.
        elements = sum(map(text.count, "[{,"))
        tokens = len(getattr(event, "ids", ()))
        self._size += len(text) + 64 * elements + 12 * tokens

    def check(self) -> None:
        """Raises Spent when it has no room."""
        if self._size >= LARGEST_JOURNAL:
            raise Spent(
                f"the episode's journal has {LARGEST_JOURNAL >> 20} MB", "journal_full", Stop.LENGTH
            )
        if self._steps >= STEPS:
            raise Spent(f"the episode's {STEPS} steps are made", "steps_spent", Stop.TURNS)
