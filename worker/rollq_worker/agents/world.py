"""The environment of an agent program's episode: its opening, the agent's steps in it, and its end.

Steps are recorded as `Acted` events. Those of an earlier attempt are carried out again and
compared. It is used by the attempt's own thread only, and knows nothing of requests.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rollq.env import Action, Environment, Observation, Sandbox, User
from rollq.errors import EnvironmentFailure
from rollq.events import Acted, Closed, Event, Message, Stop
from rollq.job import Json
from rollq_worker.agents.recorded import HINT
from rollq_worker.episode.environment_checks import check_observation, close
from rollq_worker.episode.messages import for_environment, recorded_action, schemas_of
from rollq_worker.episode.resume import Recording
from rollq_worker.failures import Diverged, errors_become


class World:
    """One environment and its user."""

    def __init__(
        self,
        environment: Environment,
        user: User,
        recorded: Sequence[Acted],
        record: Callable[[Event], None],
    ) -> None:
        """`record` makes an event durable."""
        self.done = False
        """The environment has ended the episode."""
        self.acted = False
        """The agent has made a step."""
        self.opening: list[Message] = []
        """The system prompt, if there is one, and the user's first message."""
        self.tools: list[Json] = []
        self.sandbox: Sandbox | None = getattr(environment, "sandbox", None)
        self._environment = environment
        self._recording = Recording(recorded)
        self._user = self._recording.user(user)
        self._record = record

    def open(self) -> None:
        """Start the episode."""
        with errors_become(EnvironmentFailure, "environment.tools"):
            self.tools = schemas_of(self._environment)
        first = self._carry_out(Action(""), lambda action: self._reset(), "environment.reset")
        with errors_become(EnvironmentFailure, "environment.system_prompt"):
            policy = self._environment.system_prompt
        if policy:
            self.opening.append({"role": "system", "content": policy})
        self.opening.append({"role": "user", "content": first.text})

    def _reset(self) -> Observation:
        opening = self._environment.reset(self._user)
        if isinstance(opening, Observation):
            return opening
        return Observation(opening)

    @property
    def repeats(self) -> bool:
        """True if the next step is one that an earlier attempt made."""
        return bool(self._recording)

    def act(self, action: Action) -> Observation:
        """Carry out an action. Raises EnvironmentFailure, and Diverged when another one was
        recorded.
        """
        self.acted = True
        return self._carry_out(action, self._environment.step, f"environment.step({action.name})")

    def _carry_out(
        self, action: Action, step: Callable[[Action], Observation], what: str
    ) -> Observation:
        self._check_repeated(action)
        at = time.time()
        with errors_become(EnvironmentFailure, what):
            observation = step(for_environment(action))
            check_observation(observation)
            if observation.images:
                raise TypeError("the observation has images, which an agent program is not shown")
            # numpy's is no bool to JSON
            observation = replace(observation, done=bool(observation.done))
        self.done = self.done or observation.done
        recorded = recorded_action(
            action, observation.text, self._recording.user_messages, observation.reward
        )
        took = time.time() - at
        event = Acted(
            action=recorded,
            text=observation.text,
            done=observation.done,
            at=at,
            seconds=took,
        )
        if self._recording.match(event) is None:
            self._record(event)
        return observation

    def _check_repeated(self, action: Action) -> None:
        """Raises Diverged for another action than the recorded one."""
        if isinstance(recorded := self._recording.next, Acted):
            name = recorded.action["name"]
            arguments = dict(recorded.action["arguments"])
            if (name, arguments) != (action.name, dict(action.arguments)):
                raise Diverged(
                    f"the agent's step was {name}({arguments!r:.100}) and is "
                    f"{action.name}({dict(action.arguments)!r:.100}) now; {HINT}"
                )

    def close(self, stop: Stop, unfinished: str) -> Closed:
        """The end of the episode: graded if the environment has ended it, else `unfinished`."""
        return close(self._environment, stop, unfinished="" if self.done else unfinished)

    def check_finished(self) -> None:
        """Raises Diverged when the agent has not made all recorded steps."""
        left = len(self._recording)
        if left:
            raise Diverged(f"the agent did not repeat {left} of its steps; {HINT}")
