"""A customer-service conversation: an agent with tools, a user, and a database that the agent changes.

The shop and both tau benchmarks are such conversations. The invariants: an episode works on its own view of a shared
database. It is graded once, by comparing its changes with those of the ground truth. After its end it takes no further
step, so nothing later can earn the reward. Tools, policy and tasks come from a Backend and are not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock
from typing import Protocol

from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq.job import Json
from rollq_worker.environments.copy_on_write import Changes, SharedDatabase, View
from rollq_worker.protocols import RESPOND, Action, Environment, Grade, Observation, Task, User


class Backend(Protocol):
    """Tools, policy and data of one domain. One object per process, shared by all episodes."""

    tools: Sequence[Json]
    policy: str
    """The system prompt."""
    stop_markers: Sequence[str]
    """An episode ends when the user's message contains one of them."""
    database: SharedDatabase

    def call(self, view: View, action: Action) -> Observation:
        """Carry out a tool call on a view. A wrong call gives an observation, never an exception."""
        ...

    def replay(self, view: View, calls: Sequence[Action]) -> None:
        """Carry out the ground truth on a view, as the benchmark's own scorer does."""
        ...

    def missing_outputs(self, outputs: Sequence[str], messages: Sequence[str]) -> list[str]:
        """The required outputs that the agent's messages to the user do not contain."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task and its ground truth."""

    task: Task
    calls: Sequence[Action]
    """The ground truth's calls. They make the database with which the episode's database is compared."""


class ConversationDomain:
    """Implements protocols.Domain."""

    def __init__(self, name: str, version: str, backend: Backend, cases: Mapping[str, Sequence[Case]]) -> None:
        self.name = name
        self.version = version
        self.backend = backend
        self._cases = cases
        self._expected: dict[str, Changes] = {}
        self._lock = Lock()

    def splits(self) -> Mapping[str, int]:
        return {split: len(cases) for split, cases in self._cases.items()}

    def task(self, split: str, index: int) -> Task:
        return self._find(split, index).task

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        case = self._find(split, index)
        if args:
            raise JobFailure(f"environment {self.name!r} takes no env_args, not {', '.join(sorted(map(str, args)))}")
        return Conversation(self, case)

    def expected_changes(self, case: Case) -> Changes:
        """The changes that the ground truth makes. They are computed once per task."""
        with self._lock:
            if case.task.hash not in self._expected:
                view = self.backend.database.view()
                self.backend.replay(view, case.calls)
                self._expected[case.task.hash] = self.backend.database.changes(view)
            return self._expected[case.task.hash]

    def _find(self, split: str, index: int) -> Case:
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
        self._backend = domain.backend
        self._case = case
        self._view = self._backend.database.view()
        self._messages: list[str] = []  # what the agent said to the user
        self._user: User | None = None
        self._phase = _Phase.NEW

    @property
    def tools(self) -> Sequence[Json]:
        return self._backend.tools

    @property
    def system_prompt(self) -> str:
        return self._backend.policy

    def reset(self, user: User) -> str:
        self._require(_Phase.NEW, "reset")
        self._user = user
        self._phase = _Phase.RUNNING
        return self._text(user.open())

    def step(self, action: Action) -> Observation:
        self._require(_Phase.RUNNING, "step")
        if action.name == RESPOND:
            observation = self._respond(action.arguments.get("content"))
        else:
            observation = self._backend.call(self._view, action)
        if observation.done:
            self._phase = _Phase.DONE
        return observation

    def grade(self) -> Grade:
        if self._phase in (_Phase.NEW, _Phase.GRADED):
            raise EnvironmentFailure(f"{self._name}: graded {'twice' if self._user else 'before its reset'}")
        self._phase = _Phase.GRADED
        changes, expected = self._backend.database.changes(self._view), self._domain.expected_changes(self._case)
        wrong = sorted({record for record, _ in changes.items() ^ expected.items()})
        missing = self._backend.missing_outputs(self._case.task.outputs, self._messages)
        return Grade(
            reward=0.0 if wrong or missing else 1.0,
            info={"database": not wrong, "outputs": not missing, "wrong_records": wrong, "untold": missing},
        )

    def _respond(self, content: Json) -> Observation:
        if not isinstance(content, str):
            return Observation(f"Error: {RESPOND} needs a text as its content")
        self._messages.append(content)
        assert self._user is not None  # it is RUNNING
        reply = self._text(self._user.reply(content))
        return Observation(reply, done=any(marker in reply for marker in self._backend.stop_markers))

    def _text(self, message: object) -> str:
        if not isinstance(message, str):
            raise UserFailure(f"{self._name}: the user said {type(message).__name__} instead of a text")
        return message

    def _require(self, phase: _Phase, act: str) -> None:
        if self._phase is not phase:
            raise EnvironmentFailure(f"{self._name}: {act} of an episode that is {self._phase.name.lower()}")

    @property
    def _name(self) -> str:
        return f"{self._domain.name} {self._case.task.id}"
