"""The environment of an agent program's episode: its opening, the agent's steps in it, and its end.

Steps are recorded as `Acted` events. Those of an earlier attempt are carried out again and
compared. Only the attempt's own thread acts in it. It knows nothing of requests.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rollq.env import RESPOND, Action, Environment, Observation, Sandbox, User
from rollq.errors import EnvironmentFailure
from rollq.events import Acted, Closed, Event, Message, Stop
from rollq.job import Json
from rollq_worker.agents.recorded import HINT
from rollq_worker.episode.environment_checks import check_observation, check_text, close
from rollq_worker.episode.messages import for_environment, recorded_action, schemas_of
from rollq_worker.episode.resume import Recording
from rollq_worker.failures import Diverged, errors_become

OPENING = Action("")
"""The opening of an episode, as `Acted` records it."""


class World:
    """An agent program's environment and user. Records each step, and compares those that an
    earlier attempt recorded.
    """

    def __init__(
        self,
        environment: Environment,
        user: User,
        recorded: Sequence[Acted],
        record: Callable[[Event], None],
    ) -> None:
        """`record` makes an event durable."""
        self.is_done = False
        """True once the environment has ended the episode."""
        self.has_acted = False
        """True once the agent has made a step."""
        self.opening: list[Message] = []
        """The system prompt, if there is one, and the user's first message."""
        self.tools: list[Json] = []
        self.sandbox: Sandbox | None = getattr(environment, "sandbox", None)
        self._environment = environment
        self._recording = Recording(recorded)
        self._user = self._recording.user(user)
        self._record = record

    def open(self) -> None:
        """Starts the episode."""
        with errors_become(EnvironmentFailure, "environment.tools"):
            self.tools = schemas_of(self._environment)
        first = self._carry_out(OPENING, self._reset, "environment.reset")
        with errors_become(EnvironmentFailure, "environment.system_prompt"):
            system_prompt = self._environment.system_prompt
            check_text("system prompt", system_prompt)
        if system_prompt:
            self.opening.append({"role": "system", "content": system_prompt})
        self.opening.append({"role": "user", "content": first.text})

    def _reset(self, _: Action) -> Observation:
        opening = self._environment.reset(self._user)
        if isinstance(opening, Observation):
            return opening
        return Observation(opening)

    def refusal_of(self, action: Action) -> str:
        """Words for a policy that calls a tool `respond` which there is not: environments would
        take that for a message to the user. "" for any other action.
        """
        tools = {tool["function"]["name"] for tool in self.tools}
        is_message = isinstance(action.arguments.get("content"), str)
        if action.name != RESPOND or RESPOND in tools or is_message:
            return ""
        return f"Error: there is no tool named {RESPOND!r}: write to the user in plain text"

    @property
    def is_repeating(self) -> bool:
        """True if the next step is one that an earlier attempt made."""
        return bool(self._recording)

    def act(self, action: Action) -> Observation:
        """Carries out an action. Raises EnvironmentFailure, and Diverged when another one was
        recorded.
        """
        self.has_acted = True
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
            # numpy's bool is not JSON
            observation = replace(observation, done=bool(observation.done))
        self.is_done = self.is_done or observation.done
        recorded = recorded_action(
            action, observation.text, self._recording.user_messages, observation.reward
        )
        event = Acted(
            action=recorded,
            text=observation.text,
            done=observation.done,
            at=at,
            seconds=time.time() - at,
        )
        if self._recording.match(event) is None:
            self._record(event)
        return observation

    def _check_repeated(self, action: Action) -> None:
        """Raises Diverged for another action than the recorded one."""
        recorded = self._recording.next
        if not isinstance(recorded, Acted):
            return
        name = recorded.action["name"]
        arguments = dict(recorded.action["arguments"])
        arguments_now = dict(action.arguments)
        if (name, arguments) != (action.name, arguments_now):
            raise Diverged(
                f"the agent's step was {name}({arguments!r:.100}) and is "
                f"{action.name}({arguments_now!r:.100}) now; {HINT}"
            )

    def close(self, stop: Stop, unfinished: str) -> Closed:
        """The end of the episode: graded if the environment has ended it, else `unfinished`."""
        return close(self._environment, stop, unfinished="" if self.is_done else unfinished)

    def check_finished(self) -> None:
        """Raises Diverged when the agent has not made all recorded steps."""
        left = len(self._recording)
        if left:
            raise Diverged(f"the agent did not repeat {left} of its steps; {HINT}")
