"""A customer-service conversation: an agent with tools, a user, and a database that the agent
changes.

The shop and the tau benchmarks are such conversations. The invariants: an episode works on a state
of its own, mostly a view of a shared database. It is graded once. After its end it takes no further
step, so nothing later can earn the reward. Tools, system prompt and tasks come from a Backend and
are not known here.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock
from typing import Any, Protocol

from rollq.env import RESPOND, Action, Environment, Grade, Observation, Task, User
from rollq.env.copy_on_write import Changes, SharedDatabase, View
from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq.job import Json

MAX_USER_CALLS = 30
"""Tool calls of a user between two of its messages at which it counts as stuck."""


class Backend(Protocol):
    """Tools, system prompt and grading of one domain. One object per process, shared by all
    episodes.
    """

    tools: Sequence[Json]
    system_prompt: str
    stop_markers: Sequence[str]
    """An episode ends when the user's message contains one of them."""

    def begin(self, case: "Case") -> Any:
        """The state of a new episode, which only this backend looks into."""
        ...

    def call(self, state: Any, action: Action) -> Observation:
        """Carries out a tool call. A wrong call gives an observation, never an exception."""
        ...

    def user_call(self, state: Any, message: str) -> str | None:
        """Carries out the tool call in a user's message and returns its result; None if the message
        is not a tool call.
        """
        ...

    def grade(self, state: Any, case: "Case", messages: Sequence[str]) -> Grade:
        """Grades a finished episode. `messages`: what the agent wrote to the user. Called once."""
        ...


class DatabaseBackend(ABC):
    """A Backend whose episodes are graded by what they changed in a database, and by what the agent
    told the user.
    """

    def __init__(self, database: SharedDatabase) -> None:
        self.database = database
        self._expected: dict[str, Changes] = {}
        self._lock = Lock()

    @abstractmethod
    def replay(self, view: View, calls: Sequence[Action]) -> None:
        """Carries out the ground truth on a view, as the benchmark's own scorer does."""

    @abstractmethod
    def missing_outputs(self, outputs: Sequence[str], messages: Sequence[str]) -> list[str]:
        """The required outputs that the agent's messages to the user do not contain."""

    def begin(self, case: "Case") -> View:
        return self.database.view()

    def user_call(self, state: View, message: str) -> str | None:
        return None  # the user has no tools

    def grade(self, state: View, case: "Case", messages: Sequence[str]) -> Grade:
        changes = self.database.changes(state)
        expected = self._expected_changes(case)
        differences = changes.items() ^ expected.items()
        wrong = sorted({record for record, _ in differences})
        missing = self.missing_outputs(case.task.outputs, messages)
        info: dict[str, Json] = {
            "database": not wrong,
            "outputs": not missing,
            "wrong_records": wrong,
            "untold": missing,
        }
        if case.task.assertions:
            info["assertions"] = list(case.task.assertions)
        return Grade(0.0 if wrong or missing else 1.0, info)

    def _expected_changes(self, case: "Case") -> Changes:
        """The changes that the ground truth makes. They are computed once per task."""
        with self._lock:
            if case.task.hash not in self._expected:
                view = self.database.view()
                self.replay(view, case.calls)
                self._expected[case.task.hash] = self.database.changes(view)
            return self._expected[case.task.hash]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task and its ground truth."""

    task: Task
    calls: Sequence[Action]
    """The ground truth's calls. They make the database with which the episode's database is
    compared.
    """
    original: Any = None
    """The benchmark's own task, for a backend that grades by it."""


class ConversationDomain:
    """Implements rollq.env.Domain."""

    def __init__(
        self, name: str, version: str, backend: Backend, cases: Mapping[str, Sequence[Case]]
    ) -> None:
        self.name = name
        self.version = version
        self.backend = backend
        self._cases = cases

    def splits(self) -> Mapping[str, int]:
        return {split: len(cases) for split, cases in self._cases.items()}

    def task(self, split: str, index: int) -> Task:
        return self._find(split, index).task

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        case = self._find(split, index)
        if args:
            raise JobFailure(
                f"environment {self.name!r} takes no env_args, not "
                f"{', '.join(sorted(map(str, args)))}"
            )
        return Conversation(self, case)

    def _find(self, split: str, index: int) -> Case:
        if split not in self._cases:
            raise JobFailure(
                f"environment {self.name!r} has no split {split!r}; it has {', '.join(self._cases)}"
            )
        cases = self._cases[split]
        if type(index) is not int or not 0 <= index < len(cases):
            raise JobFailure(
                f"environment {self.name!r}: split {split!r} has tasks 0 to {len(cases) - 1}, not "
                f"{index!r}"
            )
        return cases[index]


class _Phase(Enum):
    NEW = auto()
    RUNNING = auto()
    DONE = auto()
    GRADED = auto()


class Conversation:
    """Implements rollq.env.Environment."""

    def __init__(self, domain: ConversationDomain, case: Case) -> None:
        self._domain = domain
        self._backend = domain.backend
        self._case = case
        self._state = self._backend.begin(case)
        self._agent_messages: list[str] = []
        self._user: User | None = None
        self._phase = _Phase.NEW

    @property
    def tools(self) -> Sequence[Json]:
        return self._backend.tools

    @property
    def system_prompt(self) -> str:
        return self._backend.system_prompt

    def reset(self, user: User) -> str:
        self._require(_Phase.NEW, "reset")
        self._user = user
        self._phase = _Phase.RUNNING
        opening = self._checked_text(user.open())
        if self._backend.user_call(self._state, opening) is not None:
            raise UserFailure(f"{self._name}: the user called a tool before it said anything")
        return opening

    def step(self, action: Action) -> Observation:
        self._require(_Phase.RUNNING, "step")
        if action.name == RESPOND:
            observation = self._respond(action.arguments.get("content"))
        else:
            observation = self._backend.call(self._state, action)
        if observation.done:
            self._phase = _Phase.DONE
        return observation

    def grade(self) -> Grade:
        if self._phase is _Phase.NEW:
            raise EnvironmentFailure(f"{self._name}: graded before its reset")
        if self._phase is _Phase.GRADED:
            raise EnvironmentFailure(f"{self._name}: graded twice")
        self._phase = _Phase.GRADED
        return self._backend.grade(self._state, self._case, self._agent_messages)

    def _respond(self, content: Json) -> Observation:
        if not isinstance(content, str):
            return Observation(f"Error: {RESPOND} needs a text as its content")
        self._agent_messages.append(content)
        reply = self._user_reply(content)
        is_over = any(marker in reply for marker in self._backend.stop_markers)
        return Observation(reply, done=is_over)

    def _user_reply(self, message: str) -> str:
        """The user's next message. Carries out the tool calls that the user makes before it."""
        assert self._user is not None  # it is RUNNING
        for _ in range(MAX_USER_CALLS):
            reply = self._checked_text(self._user.reply(message))
            result = self._backend.user_call(self._state, reply)
            if result is None:
                return reply
            message = result
        raise UserFailure(
            f"{self._name}: the user called tools {MAX_USER_CALLS} times without a word to the "
            "agent"
        )

    def _checked_text(self, message: object) -> str:
        if not isinstance(message, str):
            raise UserFailure(
                f"{self._name}: the user said {type(message).__name__} instead of a text"
            )
        return message

    def _require(self, phase: _Phase, act: str) -> None:
        if self._phase is not phase:
            raise EnvironmentFailure(
                f"{self._name}: {act} of an episode that is {self._phase.name.lower()}"
            )

    @property
    def _name(self) -> str:
        return f"{self._domain.name} {self._case.task.id}"
