"""Time limits on foreign code: an attempt records every call that its thread makes into an
environment or a user.

A thread cannot be killed. The heartbeat fails the attempt of an overdue call and leaves the thread
behind. This module knows nothing of ledgers or leases.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rollq.env import Action, Environment, Grade, Observation, RewardFunction, Sandbox, User
from rollq.errors import (
    EnvironmentFailure,
    FailureClass,
    RewardFailure,
    RolloutFailure,
    UserFailure,
)
from rollq.events import Message
from rollq.job import Json
from rollq.trajectory import Trajectory
from rollq_worker.failures import typed
from rollq_worker.protocols import Context
from rollq_worker.text.whole_text import whole_characters

STEP_LIMIT_S = 60.0
"""Longest reset, step or grade of an environment in seconds, without the time that its user takes.
An environment may have a `longest_step_s` and a `longest_grade_s` of its own.
"""
OPEN_LIMIT_S = 300.0
"""Longest opening of an environment in seconds. The first one in a process imports packages and
reads data. A domain may have a `longest_open_s` of its own.
"""
MAX_OBSERVATION_CHARS = 1 << 22
"""Longest observation in characters: more than any context holds. Every copy takes memory."""


@dataclass
class ForeignCall:
    """A call into foreign code that is under way."""

    failure: type[RolloutFailure]
    what: str
    limit_s: float
    since: float
    """Monotonic time at which the call began, moved on by the time that calls within it took."""
    away: str = ""
    """Name of a service that the call waits for because it is away. The time limit is paused."""
    away_since: float = 0.0

    @property
    def overdue(self) -> bool:
        until = self.away_since if self.away else time.monotonic()
        return until - self.since > self.limit_s

    def blame(self, reason: str) -> tuple[FailureClass, str]:
        """Class and reason of the failure when the attempt ends in this call."""
        return self.failure.failure, f"{reason} while waiting for {self.what}"


class TimeLimits:
    """The foreign calls of one attempt's thread, each with its limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[ForeignCall] = []
        self._away_s = 0.0

    @contextmanager
    def call(self, failure: type[RolloutFailure], what: str, limit_s: float) -> Iterator[None]:
        """A block around foreign code that may take `limit_s` seconds. Its errors become
        `failure`.
        """
        began = time.monotonic()
        with self._lock:
            self._calls.append(ForeignCall(failure, what, limit_s, began))
        try:
            yield
        # sys.exit(), a cancelled coroutine or a panic in Rust code must not end this thread
        except BaseException as e:
            became = typed(e, failure, what)
            if became is None:
                raise
            raise became from e
        finally:
            with self._lock:
                self._calls.pop()
                if self._calls:
                    self._calls[-1].since += time.monotonic() - began

    @contextmanager
    def away(self, what: str) -> Iterator[None]:
        """A block in which the innermost call waits for something that is away. Its clock stands
        still.
        """
        with self._lock:
            call = self._calls[-1]
            call.away_since = time.monotonic()  # first: another thread reads it once `away` is set
            call.away = what
        try:
            yield
        finally:
            with self._lock:
                passed_s = time.monotonic() - call.away_since
                self._away_s += passed_s
                call.since += passed_s
                call.away = ""

    def stand_still(self, seconds: float, *, deadline: bool = True) -> None:
        """The clocks stood still for so long, until now: those of the calls, and the deadline's."""
        with self._lock:
            if self._calls and self._calls[-1].away:
                return  # they do so anyway
            if deadline:
                self._away_s += seconds
            if self._calls:
                self._calls[-1].since += seconds

    @property
    def away_s(self) -> float:
        """Seconds so far in which something was away that a call waited for, or the process was
        frozen.
        """
        with self._lock:  # the end of a wait moves its seconds from one term to the other
            call = self._calls[-1] if self._calls else None
            if call is None or not call.away:
                return self._away_s
            return self._away_s + time.monotonic() - call.away_since

    @property
    def current(self) -> ForeignCall | None:
        """The innermost call."""
        if not self._calls:
            return None
        with self._lock:
            return self._calls[-1] if self._calls else None


class TimedEnvironment:
    """An environment and its user, with a limit on every call. `tools` are the environment's, read
    before.
    """

    def __init__(
        self,
        environment: Environment,
        limits: TimeLimits,
        user_limit_s: float,
        tools: Sequence[Json],
    ) -> None:
        self.tools = tools
        self.sandbox: Sandbox | None = getattr(environment, "sandbox", None)
        self._environment = environment
        self._limits = limits
        self._user_limit_s = user_limit_s

    @property
    def system_prompt(self) -> str:
        with self._limits.call(EnvironmentFailure, "environment.system_prompt", STEP_LIMIT_S):
            prompt: str = _in_whole_characters(self._environment.system_prompt)
            return prompt

    def reset(self, user: User) -> str | Observation:
        timed = _TimedUser(user, self._limits, self._user_limit_s)
        with self._limits.call(EnvironmentFailure, "environment.reset", STEP_LIMIT_S):
            opening: str | Observation = _in_whole_characters(self._environment.reset(timed))
            return opening

    def step(self, action: Action) -> Observation:
        with self._limits.call(
            EnvironmentFailure, f"environment.step({action.name})", self._longest_s("step")
        ):
            observation: Observation = _in_whole_characters(self._environment.step(action))
            size = len(observation.text) if isinstance(observation.text, str) else 0
            if size > MAX_OBSERVATION_CHARS:
                raise ValueError(
                    f"an observation of {size} characters; at most {MAX_OBSERVATION_CHARS} are "
                    "allowed"
                )
            return observation

    def grade(self) -> Grade:
        with self._limits.call(EnvironmentFailure, "environment.grade", self._longest_s("grade")):
            return self._environment.grade()

    def _longest_s(self, call: str) -> float:
        name = f"longest_{call}_s"
        with self._limits.call(EnvironmentFailure, f"environment.{name}", STEP_LIMIT_S):
            return float(getattr(self._environment, name, STEP_LIMIT_S))


def _in_whole_characters(value: Any) -> Any:
    """Text of an environment in whole characters. Other values are refused where they are read."""
    if isinstance(value, Observation):
        return replace(value, text=_in_whole_characters(value.text))
    if isinstance(value, str):
        return whole_characters(value)
    return value


def timed_reward(reward: RewardFunction, limits: TimeLimits, limit_s: float) -> RewardFunction:
    """The reward function, with a limit on its time."""

    def timed(trajectory: Trajectory, grade: Grade) -> float | Grade:
        with limits.call(RewardFailure, "the reward function", limit_s):
            return reward(trajectory, grade)

    return timed


def timed_context(context: Context, limits: TimeLimits) -> Context:
    """The context, with a limit on the time that it takes to shorten a conversation."""

    def timed(
        opening: Sequence[Message], messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        with limits.call(context.failure, "the context", context.longest_s):
            return context.shorten(opening, messages, tokens)

    return replace(context, shorten=timed)


class _TimedUser:
    def __init__(self, user: User, limits: TimeLimits, limit_s: float) -> None:
        self._user = user
        self._limits = limits
        self._limit_s = limit_s

    def open(self) -> str:
        with self._limits.call(UserFailure, "the user", self._limit_s):
            return self._user.open()

    def reply(self, message: str) -> str:
        with self._limits.call(UserFailure, "the user", self._limit_s):
            return self._user.reply(message)

    def recall(self, heard: str | None, reply: str) -> None:
        self._user.recall(heard, reply)
