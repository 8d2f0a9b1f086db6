"""A user that says fixed lines, whatever the agent says. Costs nothing and never fails."""

from collections.abc import Sequence


class ScriptedUser:
    """Reply k answers message k; the last reply is repeated."""

    def __init__(self, opening: str, replies: Sequence[str]) -> None:
        if not replies:
            raise ValueError("a scripted user needs at least one reply")
        self._opening = opening
        self._replies = replies
        self._said = 0

    def open(self) -> str:
        return self._opening

    def reply(self, message: str) -> str:
        line = self._replies[min(self._said, len(self._replies) - 1)]
        self._said += 1
        return line

    def recall(self, heard: str | None, reply: str) -> None:
        self._said += heard is not None
