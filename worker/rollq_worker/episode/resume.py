"""A journal played again: what an earlier attempt recorded stands in for the engine and the user.

The agent loop runs as it always does; sampled ids and the user's words come from the record, and every event that the
loop makes is compared with the recorded one. So a resumed episode is in the very state that the journal describes, or
it is known not to be. No engine and no user model is asked for anything while the record lasts.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollq.errors import EnvironmentFailure
from rollq.trajectory import Event, Observed, Prompt, Sampled
from rollq_worker.protocols import RESPOND, User

UNTIMED = ("at", "seconds")


class Diverged(EnvironmentFailure):
    """A replayed episode did not do what its journal says; it starts again in a fresh environment."""


class Record:
    """The events of an earlier attempt that are still to be played again, and what the user says for the next one."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self._events = deque(events)
        self.said: list[str] = []
        """The user's words since the last event, recorded or not."""

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

    def went_on(self, rewritten: bool) -> bool | None:
        """Whether the turn that is being answered was followed by another one; None: the record does not say.

        It is not worked out anew, because it may be another engine now, with room for more or for less. `rewritten`: it
        would be followed by a new trace.
        """
        if not self._events:
            return None
        if not rewritten:
            return len(getattr(self._events[0], "ids", ())) > 0
        return isinstance(self._events[1], Prompt) if len(self._events) > 1 else None

    def match(self, event: Event) -> Event | None:
        """The recorded twin of an event that the loop made; None when it is new. Raises Diverged when they differ."""
        self.said.clear()
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
        return _RecordedUser(user, self)

    def word(self) -> str | None:
        """What the user said next; None: that is not recorded. Raises Diverged when it was not asked so often."""
        if not self._events:
            return None
        words = _words(self._events[0])
        if len(self.said) >= len(words):
            raise Diverged(f"the user is asked more than the {len(words)} times that the journal has")
        return words[len(self.said)]


class _RecordedUser:
    """Says what was recorded and tells the live user that it did, until the record ends."""

    def __init__(self, user: User, record: Record) -> None:
        self._user = user
        self._record = record

    def open(self) -> str:
        return self._say(None, self._user.open)

    def reply(self, message: str) -> str:
        return self._say(message, lambda: self._user.reply(message))

    def recall(self, heard: str | None, said: str) -> None:
        self._user.recall(heard, said)

    def _say(self, heard: str | None, ask: Callable[[], str]) -> str:
        said = self._record.word()
        if said is None:
            said = ask()
        else:
            self._user.recall(heard, said)
        self._record.said.append(said)
        return said


def _words(event: Event) -> list[str]:
    """What the user said for this event."""
    if isinstance(event, Prompt):
        return [event.messages[-1]["content"]]
    if not isinstance(event, Observed):
        return []
    words: list[str] = []
    for action, reply in zip(event.actions, event.replies, strict=False):
        words += action.get("user", [reply["content"]] if action["name"] == RESPOND else [])
    return words


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
