"""An environment for the fault suite: the shop, but a task may break its worker.

Mischief is ordered by files in the folder CHAOS_MISCHIEF, named KIND.TASK.N: each is done once, in the third step of
whichever episode of that task comes first, which moves the file to the folder CHAOS_DONE and writes its process there.
"""

import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path

from rollq.job import Json
from rollq_worker.environments.shop import ShopDomain
from rollq_worker.protocols import Action, Environment, Grade, Observation, Task, User

AT = 3
"""The step in which it happens."""
HOLD_S = 22
"""Seconds; longer than a lease."""


def load(variant: str | None) -> "ChaosDomain":
    """The entry point."""
    return ChaosDomain()


class ChaosDomain:
    name = "chaos"
    version = "chaos 1"

    def __init__(self) -> None:
        self._shop = ShopDomain()

    def splits(self) -> Mapping[str, int]:
        return self._shop.splits()

    def task(self, split: str, index: int) -> Task:
        return self._shop.task(split, index)

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        return ChaosEnvironment(self._shop.open(split, index, args), index)


class ChaosEnvironment:
    def __init__(self, environment: Environment, task: int) -> None:
        self._environment = environment
        self._task = task
        self._steps = 0

    @property
    def tools(self) -> list[Json]:
        return list(self._environment.tools)

    @property
    def system_prompt(self) -> str:
        return self._environment.system_prompt

    def reset(self, user: User) -> str:
        return self._environment.reset(user)

    def step(self, action: Action) -> Observation:
        self._steps += 1
        if self._steps == AT:
            misbehave(self._task)
        return self._environment.step(action)

    def grade(self) -> Grade:
        return self._environment.grade()


def misbehave(task: int) -> None:
    """Whatever is ordered for this task."""
    for order in sorted(Path(os.environ["CHAOS_MISCHIEF"]).glob(f"*.{task}.*")):
        done = Path(os.environ["CHAOS_DONE"], order.name)
        try:
            order.rename(done)
        except FileNotFoundError:
            continue  # another episode was faster
        done.write_text(str(os.getpid()))
        match order.name.partition(".")[0]:
            case "raise":
                raise ValueError(f"the environment of task {task} broke")
            case "memory":
                raise MemoryError
            case "hang":
                time.sleep(60)
            case "hold":
                ctypes.PyDLL(None).sleep(HOLD_S)  # and nobody else has the interpreter meanwhile
            case "spin":
                9**9**9  # holds the interpreter for ever
            case "die":
                os._exit(137)  # what the kernel's OOM killer makes of it
