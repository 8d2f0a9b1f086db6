"""The foreign code that an attempt is in, and since when: a step that overruns is given up, and its thread with it.

No thread can be killed. What can be done is to raise an exception in it, which ends code that loops and leaves code
that blocks as it is. So whoever watches calls `interrupt` until the thread comes back, or counts it as lost. It knows
nothing of ledgers or leases.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rollq.errors import EnvironmentFailure, FailureClass, RolloutFailure, UserFailure
from rollq.job import Json
from rollq_worker.failures import boundary
from rollq_worker.protocols import Action, Environment, Grade, Observation, User

STEP_S = 60.0
"""Longest reset, step or grade of an environment, without the time that its user takes."""
LARGEST = 1 << 22
"""Characters of an observation: more than any context holds, and every copy of them takes memory."""
OPEN_S = 300.0
"""Longest opening of an environment: the first one in a process imports packages and reads data."""


class Abandoned(BaseException):
    """The attempt has been failed under this thread. No Exception, so that foreign code does not swallow it."""


@dataclass
class Step:
    """A call into foreign code."""

    failure: type[RolloutFailure]
    what: str
    limit_s: float
    since: float
    """Monotonic; moved on by the time that calls within this one took."""

    @property
    def overrun(self) -> bool:
        return time.monotonic() - self.since > self.limit_s


class Steps:
    """What one attempt's thread is in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack: list[Step] = []
        self._thread = 0

    @contextmanager
    def inside(self, failure: type[RolloutFailure], what: str, limit_s: float) -> Iterator[None]:
        """Foreign code that may take that long, and whose failures are of that class."""
        began = time.monotonic()
        with self._lock:
            self._thread = threading.get_ident()
            self._stack.append(Step(failure, what, limit_s, began))
        try:
            with boundary(failure, what):
                yield
        except (Exception, Abandoned):
            raise
        except BaseException as e:  # sys.exit(), a cancelled coroutine, a panic in Rust code: not to end this thread
            raise failure(f"{what}: {type(e).__name__}: {e}") from e
        finally:
            with self._lock:
                self._stack.pop()
                if self._stack:
                    self._stack[-1].since += time.monotonic() - began

    @property
    def current(self) -> Step | None:
        """The innermost one."""
        with self._lock:
            return self._stack[-1] if self._stack else None

    def interrupt(self) -> None:
        """Raise Abandoned in the thread, if it is still inside."""
        with self._lock:  # it cannot leave meanwhile, so nothing of ours is ever hit
            if self._stack:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Abandoned))


class WatchedEnvironment:
    """An environment whose every step, and whose user's every word, is watched."""

    def __init__(self, environment: Environment, steps: Steps, user_s: float) -> None:
        self._environment = environment
        self._steps = steps
        self._user_s = user_s

    @property
    def tools(self) -> Sequence[Json]:
        return self._environment.tools

    @property
    def system_prompt(self) -> str:
        return self._environment.system_prompt

    def reset(self, user: User) -> str:
        watched = _WatchedUser(user, self._steps, self._user_s)
        with self._steps.inside(EnvironmentFailure, "environment.reset", STEP_S):
            return self._environment.reset(watched)

    def step(self, action: Action) -> Observation:
        with self._steps.inside(EnvironmentFailure, f"environment.step({action.name})", STEP_S):
            observation = self._environment.step(action)
            if isinstance(observation.text, str) and len(observation.text) > LARGEST:
                raise ValueError(f"an observation of {len(observation.text)} characters; {LARGEST} may be had")
            return observation

    def grade(self) -> Grade:
        with self._steps.inside(EnvironmentFailure, "environment.grade", STEP_S):
            return self._environment.grade()


class _WatchedUser:
    def __init__(self, user: User, steps: Steps, limit_s: float) -> None:
        self._user = user
        self._steps = steps
        self._limit_s = limit_s

    def open(self) -> str:
        return self._said(self._user.open)

    def reply(self, message: str) -> str:
        return self._said(lambda: self._user.reply(message))

    def recall(self, heard: str | None, said: str) -> None:
        self._user.recall(heard, said)

    def _said(self, say: Callable[[], str]) -> str:
        with self._steps.inside(UserFailure, "the user", self._limit_s):
            return say()


def blame(step: Step, reason: str) -> tuple[FailureClass, str]:
    """Class and reason of the failure of an attempt that was in this step."""
    return step.failure.failure, f"{reason} while waiting for {step.what}"
