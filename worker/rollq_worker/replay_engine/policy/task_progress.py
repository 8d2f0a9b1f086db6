"""Finds the task that a conversation is about, and counts its ground-truth moves so far.

The invariant: progress is read from the conversation alone. So a server that restarted, or that
sees only some requests behind a router, continues where the conversation is. It knows texts, never
token ids.
"""

from __future__ import annotations  # TaskProgress is made with a TaskIndex, which comes after it

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rollq.env import RESPOND, Action, Domain, Task
from rollq.errors import RollqError, SettingsError
from rollq.job import Json
from rollq_worker import environments
from rollq_worker.context.summary import HEADING, POLICY_REQUEST
from rollq_worker.episode.text_actions import TextForm, form_of, read_action
from rollq_worker.extensions.authors_line import line_of
from rollq_worker.failures import FOREIGN_ERRORS
from rollq_worker.protocols import ReadTurn
from rollq_worker.replay_engine.policy.made_up_moves import made_up_moves

_MADE = re.compile(r"(\d+) moves of this task are made")


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Progress of a conversation."""

    task: Task | None = None
    """The task; None when the conversation is about no known task."""
    opened: bool = False
    """True once a user message was read."""
    made: int = 0
    """Index of the task's next move; past the end when all are made."""
    form: TextForm | None = None
    """Form in which the policy writes actions as text; None if it makes tool calls."""
    summing_up: bool = False
    """The policy was asked for a summary."""

    def after_system(self, prompt: str) -> TaskProgress:
        """The progress after the system prompt, which names the form of actions."""
        return replace(self, form=form_of(prompt))

    def after_user(self, text: str, tasks: TaskIndex) -> TaskProgress:
        """The progress after a user message.

        The first message that has the opening of a task names it, because some agents put messages
        of their own before. Later ones, tool results among them, change nothing, but for one that
        asks for a summary. A summary states the progress of the conversation that it stands for.
        """
        summary = _MADE.search(text.partition(HEADING)[2])
        made = int(summary[1]) if summary else self.made
        task = self.task or tasks.by_opening(text)
        return replace(self, task=task, opened=True, made=made, summing_up=POLICY_REQUEST in text)

    def after_turn(self, turn: ReadTurn) -> TaskProgress:
        """The progress after a turn. The turn counts as the first remaining move that it makes;
        moves before that stay skipped.
        """
        turn = turn if self.form is None else _as_call(turn)
        if self.task is None or self.summing_up or (turn.errors and not turn.calls):
            return self
        moves = self.task.moves
        for index in range(self.made, len(moves)):
            if _is_move(turn, moves[index]):
                return replace(self, made=index + 1)
        # Where a message is due any text counts, because the scripted user's k-th reply answers the
        # k-th message.
        message_is_due = self.made < len(moves) and moves[self.made].name == RESPOND
        if message_is_due and not turn.calls:
            return replace(self, made=self.made + 1)
        return self

    @property
    def summary(self) -> str:
        """The part of a summary that `after_user` reads."""
        return f"{self.made} moves of this task are made."

    @property
    def next_move(self) -> Action | None:
        """The next move; None when the task is unknown or all its moves are made."""
        if self.task and self.made < len(self.task.moves):
            return self.task.moves[self.made]
        return None


def _as_call(turn: ReadTurn) -> ReadTurn:
    """A turn with its action written as text, read as the tool call or the words to the user that
    it stands for.
    """
    action = read_action(turn.content)
    if isinstance(action, str):
        return ReadTurn(turn.content, errors=(action,))
    if action.name == RESPOND:
        return ReadTurn(action.arguments["content"])
    return ReadTurn("", (action,))


def _is_move(turn: ReadTurn, move: Action) -> bool:
    if turn.calls:
        call = turn.calls[0]  # only the first call of a turn is carried out
        return call.name == move.name and dict(call.arguments) == dict(move.arguments)
    if move.name != RESPOND:
        return False
    return _plain(turn.content) == _plain(str(move.arguments.get("content", "")))


class TaskIndex:
    """The tasks of some domains, by their scripted user's first message and by a simulated user's
    instruction.
    """

    def __init__(self, domains: Iterable[Domain]) -> None:
        self._by_opening: dict[str, Task] = {}
        self._by_instruction: dict[str, Task] = {}
        for domain in domains:
            for split, count in domain.splits().items():
                self._add_split(domain, split, count)

    def _add_split(self, domain: Domain, split: str, count: int) -> None:
        tools: Sequence[Json] | None = None
        for index in range(count):
            try:
                task = domain.task(split, index)
                if not task.moves:
                    tools = _tools(domain, split, index) if tools is None else tools
                    task = replace(task, moves=made_up_moves(task, tools))
                self._by_opening.setdefault(_plain(task.opening), task)
                self._by_instruction.setdefault(_plain(task.instruction), task)
            except RollqError:
                raise
            except FOREIGN_ERRORS as e:
                line = line_of(e)
                raise SettingsError(
                    f"task {index} of {domain.name}/{split} cannot be played: {type(e).__name__}: "
                    f"{e}{f' ({line})' if line else ''}; `rollq env check` says more"
                ) from e

    @classmethod
    def load(cls, env: str) -> TaskIndex:
        """The tasks of one environment, of several with commas between them, or of `all` that are
        installed. Raises SettingsError that names a task which cannot be played.
        """
        if env != "all":
            return cls(environments.domain(name.strip()) for name in env.split(","))
        domains: list[Domain] = []
        for name in environments.names():
            try:
                domains.append(environments.domain(name))
            except RollqError:  # its package is not installed
                continue
        return cls(domains)

    def by_opening(self, text: str) -> Task | None:
        """The task whose user opens with `text`, or with a part of it."""
        return _find(self._by_opening, text)

    def by_instruction(self, text: str) -> Task | None:
        """The task whose instruction is in `text`, the prompt of a simulated user."""
        return _find(self._by_instruction, text)


def _tools(domain: Domain, split: str, index: int) -> Sequence[Json]:
    environment = domain.open(split, index, {})
    try:
        return list(environment.tools)
    finally:
        getattr(environment, "close", lambda: None)()


def _find(tasks: dict[str, Task], text: str) -> Task | None:
    plain = _plain(text)
    task = tasks.get(plain)
    if task is not None:
        return task
    inside = [opening for opening in tasks if opening and opening in plain]
    return tasks[max(inside, key=len)] if inside else None


def _plain(text: str) -> str:
    """The text with its white space normalised, because templates may add or strip some."""
    return " ".join(text.split())
