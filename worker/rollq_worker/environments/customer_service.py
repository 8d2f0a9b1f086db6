"""A customer-service conversation over a database: what the two tau benchmarks have in common.

The invariants: an episode works on its own view of the shared pristine database; it is graded once, by comparing what
it changed with what the ground truth changes; when it is over it is frozen, so that nothing later can earn the reward.
Neither benchmark's package is known here: an adapter hands in a Desk and the tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock
from typing import Protocol

from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq.job import Json
from rollq_worker.environments.copy_on_write import Changes, Database, Table
from rollq_worker.protocols import RESPOND, Action, Environment, Grade, Observation, Task, User

DEEPEST = 50
"""Nesting of a call's arguments; copying, hashing and printing them recurses."""
LARGEST = 2**63
"""Absolute value of an integer in a call's arguments: Python's own have no bound, arithmetic on them neither."""
TOOL_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a tool raises when it is called wrongly: an observation. Anything else, above all the time limits that some task
queues raise into running code, must get through."""


class Desk(Protocol):
    """What an adapter says of its benchmark; one object a process."""

    tools: Sequence[Json]
    policy: str
    markers: Sequence[str]
    """A user's message that contains one of them ends the episode."""
    closing: frozenset[str]
    """Tools that end the episode."""
    database: Database

    def call(self, view: dict[str, Table], name: str, arguments: dict[str, Json]) -> str:
        """Carry out a tool call on a view; `arguments` are the callee's own. Raises TOOL_ERRORS if they are wrong."""
        ...

    def replay(self, view: dict[str, Table], actions: Sequence[Action]) -> None:
        """Do what the benchmark's own scorer does to get the database that is to be."""
        ...

    def untold(self, outputs: Sequence[str], told: Sequence[str]) -> list[str]:
        """Those of the outputs that the agent's messages lack."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task and the calls whose outcome the database is compared with."""

    task: Task
    truth: Sequence[Action]


class ConversationDomain:
    """Implements protocols.Domain."""

    def __init__(self, name: str, version: str, desk: Desk, cases: Mapping[str, Sequence[Case]]) -> None:
        self.name = name
        self.version = version
        self.desk = desk
        self._cases = cases
        self._truths: dict[str, Changes] = {}
        self._lock = Lock()

    def splits(self) -> Mapping[str, int]:
        return {split: len(cases) for split, cases in self._cases.items()}

    def task(self, split: str, index: int) -> Task:
        return self._case(split, index).task

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        case = self._case(split, index)
        if args:
            raise JobFailure(f"environment {self.name!r} takes no env_args, not {', '.join(sorted(map(str, args)))}")
        return Conversation(self, case)

    def truth(self, case: Case) -> Changes:
        """What the ground truth changes, worked out when it is first asked for."""
        with self._lock:
            if case.task.hash not in self._truths:
                view = self.desk.database.view()
                self.desk.replay(view, case.truth)
                self._truths[case.task.hash] = self.desk.database.changes(view)
            return self._truths[case.task.hash]

    def _case(self, split: str, index: int) -> Case:
        if split not in self._cases:
            raise JobFailure(f"environment {self.name!r} has no split {split!r}; it has {', '.join(self._cases)}")
        cases = self._cases[split]
        if type(index) is not int or not 0 <= index < len(cases):
            raise JobFailure(
                f"environment {self.name!r}: split {split!r} has tasks 0 to {len(cases) - 1}, not {index!r}"
            )
        return cases[index]


class _Phase(Enum):
    NEW = auto()
    RUNNING = auto()
    DONE = auto()
    GRADED = auto()


class Conversation:
    """Implements protocols.Environment."""

    def __init__(self, domain: ConversationDomain, case: Case) -> None:
        self._domain = domain
        self._case = case
        self._view = domain.desk.database.view()
        self._told: list[str] = []
        self._user: User | None = None
        self._phase = _Phase.NEW

    @property
    def tools(self) -> Sequence[Json]:
        return self._domain.desk.tools

    @property
    def system_prompt(self) -> str:
        return self._domain.desk.policy

    def reset(self, user: User) -> str:
        self._require(_Phase.NEW, "reset")
        self._user = user
        self._phase = _Phase.RUNNING
        return self._said(user.open())

    def step(self, action: Action) -> Observation:
        self._require(_Phase.RUNNING, "step")
        desk = self._domain.desk
        if action.name == RESPOND:
            return self._respond(action.arguments.get("content"))
        try:
            text = desk.call(self._view, action.name, {k: own(v) for k, v in action.arguments.items()})
        except TOOL_ERRORS as e:
            text = f"Error: {e}"
        # Half a surrogate pair in an argument comes back in messages; no encoder takes it.
        text = text if text.isascii() else text.encode("utf-8", "replace").decode()
        if action.name in desk.closing:
            self._phase = _Phase.DONE
        return Observation(text, done=self._phase is _Phase.DONE)

    def grade(self) -> Grade:
        if self._phase in (_Phase.NEW, _Phase.GRADED):
            raise EnvironmentFailure(f"{self._name}: graded {'twice' if self._user else 'before its reset'}")
        self._phase = _Phase.GRADED
        desk, task = self._domain.desk, self._case.task
        done, due = desk.database.changes(self._view), self._domain.truth(self._case)
        wrong = sorted({"/".join(at) for at, _ in done.items() ^ due.items()})
        untold = desk.untold(task.outputs, self._told)
        return Grade(
            reward=0.0 if wrong or untold else 1.0,
            info={"database": not wrong, "outputs": not untold, "wrong_records": wrong, "untold": untold},
        )

    def _respond(self, content: Json) -> Observation:
        if not isinstance(content, str):
            return Observation(f"Error: {RESPOND} needs a text as its content")
        self._told.append(content)
        assert self._user is not None  # it is RUNNING
        reply = self._said(self._user.reply(content))
        if any(marker in reply for marker in self._domain.desk.markers):
            self._phase = _Phase.DONE
        return Observation(reply, done=self._phase is _Phase.DONE)

    def _said(self, message: object) -> str:
        if not isinstance(message, str):
            raise UserFailure(f"{self._name}: the user said {type(message).__name__} instead of a text")
        return message

    def _require(self, phase: _Phase, act: str) -> None:
        if self._phase is not phase:
            raise EnvironmentFailure(f"{self._name}: {act} of an episode that is {self._phase.name.lower()}")

    @property
    def _name(self) -> str:
        return f"{self._domain.name} {self._case.task.id}"


def own(value: Json, depth: int = 0) -> Json:
    """A deep copy of a call's argument. Raises ValueError, in words for the policy, past DEEPEST or LARGEST."""
    if depth > DEEPEST:
        raise ValueError("the arguments are nested too deeply")
    if isinstance(value, Mapping):
        return {key: own(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [own(item, depth + 1) for item in value]
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("a number in the arguments is too large")
    return value


def script(calls: Sequence[Action], outputs: Sequence[str], closing: frozenset[str]) -> Sequence[Action]:
    """The ground truth as moves: confirm, call, tell the outputs, and end by a goodbye or by a closing call."""
    last = [call for call in calls if call.name in closing]
    done = f"It is all done. For your notes: {'; '.join(outputs)}." if outputs else "It is all done."
    return (
        _say("Let me make sure that I understand you. Shall I go ahead with what you asked for?"),
        *(call for call in calls if call.name not in closing),
        _say(done),
        *(last[:1] or [_say("Yes, it is. Is there anything else I can do for you?")]),
    )


def _say(text: str) -> Action:
    return Action(RESPOND, {"content": text})
