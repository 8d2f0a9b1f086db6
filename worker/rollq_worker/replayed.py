"""A journal played again: what an earlier attempt recorded stands in for the engine and the user.

The agent loop runs as it always does; sampled ids and the user's replies come from the record, and every event that the
loop makes is compared with the recorded one. So a resumed episode is in the very state that the journal describes, or
it is known not to be. No engine and no user model is asked for anything that was said before.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.errors import EnvironmentFailure
from rollq.trajectory import Event, Observed, Prompt, Sampled
from rollq_worker.protocols import RESPOND, User

UNTIMED = ("at", "seconds")


class Diverged(EnvironmentFailure):
    """A replayed episode did not do what its journal says; it starts again in a fresh environment."""


class Record:
    """The events of an earlier attempt that are still to be played again."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self._events = deque(events)
        prompt = events[0] if events else None
        self._opening = prompt.messages[-1]["content"] if isinstance(prompt, Prompt) else None
        self._replies = deque(
            reply["content"]
            for event in events
            if isinstance(event, Observed)
            for action, reply in zip(event.actions, event.replies, strict=False)
            if action["name"] == RESPOND
        )

    def __bool__(self) -> bool:
        return bool(self._events)

    def sampled(self, turn: int) -> Sampled | None:
        """The next event, if it was sampled in this turn; None where the turn was cut for want of room."""
        event = self._events[0] if self._events else None
        if not isinstance(event, Sampled):
            return None
        if event.turn != turn:
            raise Diverged(f"the journal goes on in turn {event.turn}, the replay is in turn {turn}")
        self._events.popleft()
        return event

    def match(self, event: Event) -> Event | None:
        """The recorded twin of an event that the loop made; None when it is new. Raises Diverged when they differ."""
        if not self._events:
            return None
        recorded = self._events.popleft()
        if type(recorded) is not type(event):
            raise Diverged(f"the journal has a {type(recorded).__name__} where the replay has a {type(event).__name__}")
        for name in recorded.__slots__:
            was, now = _plain(getattr(recorded, name)), _plain(getattr(event, name))
            if name not in UNTIMED and was != now:
                raise Diverged(f"{type(event).__name__}.{name} was {_brief(was)} and is {_brief(now)} in the replay")
        return recorded

    def finish(self) -> None:
        """The episode ends here. Raises Diverged when its journal goes on."""
        if self._events:
            raise Diverged(f"the replay ends where the journal has a {type(self._events[0]).__name__}")

    def user(self, user: User) -> User:
        """`user`, who goes on where the record ends."""
        return _ReplayedUser(user, self._opening, self._replies)


class _ReplayedUser:
    """Says what was recorded, and tells the live user that it did."""

    def __init__(self, user: User, opening: str | None, replies: deque[str]) -> None:
        self._user = user
        self._opening = opening
        self._replies = replies

    def open(self) -> str:
        if self._opening is None:
            return self._user.open()
        self._user.recall(None, self._opening)
        return self._opening

    def reply(self, message: str) -> str:
        if not self._replies:
            return self._user.reply(message)
        said = self._replies.popleft()
        self._user.recall(message, said)
        return said

    def recall(self, heard: str | None, said: str) -> None:
        self._user.recall(heard, said)


def _plain(value: Any) -> Any:
    """Lists for every kind of sequence and dicts for every mapping: the wire does not keep them apart."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:60]} ... {text[-60:]}"
