"""The environment of an agent program's episode: its opening, the agent's steps in it, and its grade.

Steps are recorded as `Acted` events. Those of an earlier attempt are carried out again and compared. It is used by the
attempt's own thread only, and knows nothing of requests.
"""

import time
from collections.abc import Callable, Sequence

from rollq.env import RESPOND, Action, Environment, Grade, Observation, User
from rollq.errors import EnvironmentFailure
from rollq.events import Acted, Event, Message
from rollq.job import Json
from rollq_worker.agents.recorded import RecordedSteps
from rollq_worker.episode.loop import check_grade, check_reward
from rollq_worker.episode.messages import schemas_of
from rollq_worker.episode.resume import Diverged
from rollq_worker.failures import errors_become


class World:
    """One environment and its user."""

    def __init__(
        self, environment: Environment, user: User, recorded: Sequence[Acted], record: Callable[[Event], None]
    ) -> None:
        """`record` makes an event durable."""
        self.done = False
        """The environment has ended the episode."""
        self.acted = False
        """The agent has made a step."""
        self.opening: list[Message] = []
        """The system prompt, if there is one, and the user's first message."""
        self.tools: list[Json] = []
        self._environment = environment
        self._steps = RecordedSteps(recorded)
        self._user = self._steps.user(user)
        self._record = record

    def open(self) -> None:
        """Start the episode."""
        with errors_become(EnvironmentFailure, "environment.tools"):
            self.tools = schemas_of(self._environment)
        first = self._carry_out(Action(""), lambda action: self._reset(), "environment.reset")
        with errors_become(EnvironmentFailure, "environment.system_prompt"):
            policy = self._environment.system_prompt
        system: list[Message] = [{"role": "system", "content": policy}] if policy else []
        self.opening = [*system, {"role": "user", "content": first.text}]

    def _reset(self) -> Observation:
        opening = self._environment.reset(self._user)
        return opening if isinstance(opening, Observation) else Observation(opening)

    @property
    def repeats(self) -> bool:
        """Whether the next step is one that an earlier attempt made."""
        return self._steps.go_on

    def act(self, action: Action) -> Observation:
        """Carry out an action. Raises EnvironmentFailure, and AgentDiverged when another one was recorded."""
        self.acted = True
        return self._carry_out(action, self._environment.step, f"environment.step({action.name})")

    def _carry_out(self, action: Action, step: Callable[[Action], Observation], what: str) -> Observation:
        recorded: dict[str, Json] = {"name": action.name, "arguments": dict(action.arguments)}
        was, at = self._steps.take(recorded), time.time()
        with errors_become(EnvironmentFailure, what):
            observation = step(action)
            _check(observation)
        if observation.reward is not None:
            recorded["reward"] = float(observation.reward)
        if self._steps.said != ([observation.text] if action.name in ("", RESPOND) else []):
            recorded["user"] = list(self._steps.said)
        self.done = self.done or observation.done
        if was is None:
            took = time.time() - at
            self._record(Acted(action=recorded, text=observation.text, done=observation.done, at=at, seconds=took))
        elif (was.text, was.done) != (observation.text, observation.done):
            raise Diverged(f"{what} returned {was.text!r:.100} and returns {observation.text!r:.100} in the replay")
        self._steps.taken()
        return observation

    def check_finished(self) -> None:
        """Raises AgentDiverged when the agent has not made all recorded steps."""
        self._steps.check_finished()

    def grade(self) -> Grade:
        """The grade of the finished episode. Raises EnvironmentFailure."""
        with errors_become(EnvironmentFailure, "environment.grade"):
            grade = self._environment.grade()
            check_grade(grade)
        return grade


def _check(observation: Observation) -> None:
    if not isinstance(observation.text, str):
        raise TypeError(f"the observation is a {type(observation.text).__name__}, not a string")
    if observation.images:
        raise TypeError("the observation has images, which an agent program is not shown")
    if observation.reward is not None:
        check_reward(observation.reward)
