"""Which task a conversation is about, and how far its ground truth has been played.

The invariant: progress is read off the conversation alone, so a server that was restarted, or that sees only every
second request behind a router, goes on where the conversation is. It knows texts, never token ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollq.errors import RollqError
from rollq_worker.environments import domain, names
from rollq_worker.protocols import RESPOND, Action, Domain, ReadTurn, Task


@dataclass(frozen=True, slots=True)
class Progress:
    """What a conversation has come to."""

    task: Task | None = None
    """None: nobody's task."""
    opened: bool = False
    """The first user message has been read."""
    made: int = 0
    """The next of the task's moves; past the end when all are made."""

    def after_user(self, text: str, scripts: Scripts) -> Progress:
        """The first user message says whose conversation it is; the others, tool results among them, change nothing."""
        return self if self.opened else Progress(scripts.opened_by(text), opened=True)

    def after_turn(self, turn: ReadTurn) -> Progress:
        """A turn counts as the first move from here on that it makes; skipped moves are not caught up on."""
        if self.task is None or (turn.errors and not turn.calls):
            return self
        moves = self.task.moves
        for index in range(self.made, len(moves)):
            if _makes(turn, moves[index]):
                return self._at(index + 1)
        # Other words where words were due are as good: the scripted user counts, it does not listen.
        spoken = not turn.calls and self.made < len(moves) and moves[self.made].name == RESPOND
        return self._at(self.made + 1) if spoken else self

    def _at(self, made: int) -> Progress:
        return Progress(self.task, opened=True, made=made)


def _makes(turn: ReadTurn, move: Action) -> bool:
    if turn.calls:
        call = turn.calls[0]  # the others are not carried out
        return call.name == move.name and dict(call.arguments) == dict(move.arguments)
    return move.name == RESPOND and _plain(turn.content) == _plain(str(move.arguments.get("content", "")))


class Scripts:
    """The tasks of some domains by what their scripted users say first, and by what simulated ones are told."""

    def __init__(self, domains: Iterable[Domain]) -> None:
        self._by_opening: dict[str, Task] = {}
        self._by_instruction: dict[str, Task] = {}
        for each in domains:
            for split, count in each.splits().items():
                for index in range(count):
                    task = each.task(split, index)
                    self._by_opening.setdefault(_plain(task.opening), task)
                    self._by_instruction.setdefault(_plain(task.instruction), task)

    @classmethod
    def load(cls, env: str) -> Scripts:
        """The tasks of the environments named: one, several with commas between them, or `all` that are installed."""
        if env != "all":
            return cls(domain(name.strip()) for name in env.split(","))
        found: list[Domain] = []
        for name in names():
            try:
                found.append(domain(name))
            except RollqError:  # its package is not installed
                continue
        return cls(found)

    def __len__(self) -> int:
        return len(self._by_opening)

    def opened_by(self, text: str) -> Task | None:
        """The task whose user opens with `text`, or with a part of it."""
        return _find(self._by_opening, text)

    def told_in(self, text: str) -> Task | None:
        """The task whose instruction is in `text`, the prompt of a simulated user."""
        return _find(self._by_instruction, text)


def _find(tasks: dict[str, Task], text: str) -> Task | None:
    plain = _plain(text)
    if (task := tasks.get(plain)) is not None:
        return task
    inside = [known for known in tasks if known and known in plain]
    return tasks[max(inside, key=len)] if inside else None


def _plain(text: str) -> str:
    """White space is the template's."""
    return " ".join(text.split())
