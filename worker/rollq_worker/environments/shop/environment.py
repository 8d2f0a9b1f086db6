"""One episode in the shop.

Graded as in tau-bench: 1.0 if the data is what the ground truth makes of it and every output was told to the user, else
0.0. A finished or graded episode is frozen, so nothing that happens later can earn the reward.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from rollq.errors import EnvironmentFailure, UserFailure
from rollq.job import Json
from rollq_worker.environments.shop import tools
from rollq_worker.environments.shop.database import Database
from rollq_worker.environments.shop.rules import SYSTEM_PROMPT
from rollq_worker.protocols import RESPOND, STOP_MARKER, Action, Grade, Observation, Task, User


class _Phase(Enum):
    NEW = auto()
    RUNNING = auto()
    DONE = auto()
    GRADED = auto()


class ShopEnvironment:
    """Implements protocols.Environment."""

    def __init__(self, task: Task, truth: Callable[[], Database]) -> None:
        self._task = task
        self._truth = truth
        self._database = Database()
        self._user: User | None = None
        self._told: list[str] = []
        self._phase = _Phase.NEW

    @property
    def tools(self) -> Sequence[Json]:
        return tools.SCHEMAS

    @property
    def system_prompt(self) -> str:
        return SYSTEM_PROMPT

    def reset(self, user: User) -> str:
        self._require(_Phase.NEW, "reset")
        self._user = user
        self._phase = _Phase.RUNNING
        return user.open()

    def step(self, action: Action) -> Observation:
        self._require(_Phase.RUNNING, "step")
        if action.name == RESPOND:
            return self._respond(action.arguments.get("content"))
        text = tools.call(self._database, action.name, action.arguments)
        if self._database.handed_over:
            self._phase = _Phase.DONE
        return Observation(text, done=self._database.handed_over)

    def grade(self) -> Grade:
        if self._phase is _Phase.NEW or self._phase is _Phase.GRADED:
            raise EnvironmentFailure(f"{self._task.id}: graded {'twice' if self._user else 'before its reset'}")
        self._phase = _Phase.GRADED
        differences = self._database.differences(self._truth())
        told = [_plain(text) for text in self._told]
        untold = [output for output in self._task.outputs if not any(_plain(output) in text for text in told)]
        return Grade(
            reward=0.0 if differences or untold else 1.0,
            info={
                "database": not differences,
                "outputs": not untold,
                "wrong_records": differences,
                "untold": untold,
            },
        )

    def _respond(self, content: Json) -> Observation:
        if not isinstance(content, str):
            return Observation(f"Error: {RESPOND} needs a text as its content")
        self._told.append(content)
        assert self._user is not None  # it is RUNNING
        reply = self._user.reply(content)
        if not isinstance(reply, str):
            raise UserFailure(f"{self._task.id}: the user replied {type(reply).__name__} instead of text")
        done = STOP_MARKER in reply
        if done:
            self._phase = _Phase.DONE
        return Observation(reply, done=done)

    def _require(self, phase: _Phase, act: str) -> None:
        if self._phase is not phase:
            raise EnvironmentFailure(f"{self._task.id}: {act} of an episode that is {self._phase.name.lower()}")


def _plain(text: str) -> str:
    return text.lower().replace(",", "")
