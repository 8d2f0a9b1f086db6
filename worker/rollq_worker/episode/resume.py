"""Resume: the events of an earlier attempt stand in for the engine and the user.

The episode is played as always. Sampled ids and the user's messages come from the journal, and
every event that is made is compared with the recorded one. The invariants: a resumed episode
reaches the state that the journal describes, or raises Diverged. Neither engine nor user is asked
for what the journal has.

The agent loop replays all its events so. An agent program makes its requests in its own order, so
of its events only the steps are replayed here; `rollq_worker.agents.recorded` answers its requests.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollq.env import User
from rollq.events import Acted, Event, Message, Observed, Prompt, Sampled
from rollq.images import text_of
from rollq_worker.episode.messages import user_messages_in
from rollq_worker.failures import Diverged


class Recording:
    """The events of an earlier attempt that are still to be replayed."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = deque(events)
        self.user_messages: list[str] = []
        """The user's messages since the last event, recorded or not."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def next(self) -> Event | None:
        """The event that comes next; None where the recording ends."""
        return self._events[0] if self._events else None

    def sampled(self, turn: int) -> Sampled | None:
        """The next event if it was sampled in this turn; None when the turn ended because it had no
        room left.
        """
        event = self.next
        if not isinstance(event, Sampled):
            return None
        if event.turn != turn:
            raise Diverged(
                f"the journal goes on in turn {event.turn}, the replay is in turn {turn}"
            )
        self._events.popleft()
        return event

    def another_turn_followed(self, new_trace: bool) -> bool | None:
        """True if another turn followed the one being answered, in a new trace or not; None if the
        journal ends here.

        It is read from the journal, because the context of another engine may have room for more or
        less.
        """
        if not self._events:
            return None
        if not new_trace:
            return len(getattr(self._events[0], "ids", ())) > 0
        if len(self._events) > 1:
            return isinstance(self._events[1], Prompt)
        return None

    def opened(self, unknown: Callable[[], Sequence[Message] | None]) -> Sequence[Message] | None:
        """The messages of the trace that was opened behind the turn being answered; None if none
        was. Where the journal ends before that, the result of `unknown`.
        """
        if len(self._events) > 1:
            if isinstance(self._events[1], Prompt):
                return self._events[1].messages
            return None
        if self.another_turn_followed(new_trace=False):
            return None
        return unknown()

    def match(self, event: Event) -> Event | None:
        """The recorded event that equals this one; None when it is new. Raises Diverged when they
        differ.
        """
        self.user_messages.clear()
        if not self._events:
            return None
        recorded = self._events.popleft()
        if type(recorded) is not type(event):
            raise Diverged(
                f"the journal has a {type(recorded).__name__} where the replay has a "
                f"{type(event).__name__}"
            )
        for name in recorded.__slots__:
            was = _plain(getattr(recorded, name))
            now = _plain(getattr(event, name))
            if name not in ("at", "seconds") and was != now:
                raise Diverged(
                    f"{type(event).__name__}.{name} was {_brief(was)} and is {_brief(now)} in the "
                    "replay"
                )
        return recorded

    def check_finished(self) -> None:
        """Raises Diverged when the journal goes on although the episode ends here."""
        if self._events:
            raise Diverged(
                f"the replay ends where the journal has a {type(self._events[0]).__name__}"
            )

    def user(self, user: User) -> User:
        """A user that repeats the recorded messages. `user` goes on where the recording ends."""
        return _RecordedUser(user, self)


class _RecordedUser:
    """Repeats the recorded messages and has the live user recall them, until the recording ends."""

    def __init__(self, user: User, recording: Recording) -> None:
        self._user = user
        self._recording = recording

    def open(self) -> str:
        return self._say(None, self._user.open)

    def reply(self, message: str) -> str:
        return self._say(message, lambda: self._user.reply(message))

    def recall(self, heard: str | None, reply: str) -> None:
        self._user.recall(heard, reply)

    def _say(self, heard: str | None, ask: Callable[[], str]) -> str:
        before = self._recording.user_messages
        event = self._recording.next
        if event is None:
            message = ask()
        else:
            recorded = _user_messages(event)
            if len(before) >= len(recorded):
                raise Diverged(
                    f"the user is asked more than the {len(recorded)} times that the journal has"
                )
            message = recorded[len(before)]
            self._user.recall(heard, message)
        before.append(message)
        return message


def _user_messages(event: Event) -> Sequence[str]:
    """Messages of the user between the event before this one and this one."""
    match event:
        case Prompt():
            return [text_of(event.messages[-1]["content"])]
        case Observed():
            messages: list[str] = []
            for action, reply in zip(event.actions, event.replies, strict=False):
                messages += user_messages_in(action, text_of(reply["content"]))
            return messages
        case Acted():
            return user_messages_in(event.action, event.text)
    return []


def _plain(value: Any) -> Any:
    """The value with lists for all sequences and dicts for all mappings, because the wire does not
    tell these types apart.
    """
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value


def _brief(value: object) -> str:
    text = repr(value)
    if len(text) <= 120:
        return text
    return f"{text[:60]} ... {text[-60:]}"
