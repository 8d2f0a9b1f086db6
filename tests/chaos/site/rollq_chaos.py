"""An environment for the fault suite: the shop, where a step may break its worker.

A file KIND.TASK.N in the folder CHAOS_FAULTS_ORDERED orders one fault. It happens once, in the
third step of the first episode of that task to get there, which moves the file to CHAOS_FAULTS_DONE
and writes its pid into it.
"""

import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path

from rollq.env import Action, Environment, Observation
from rollq.job import Json
from rollq_worker.environments.shop import load as load_shop

FAULTY_STEP = 3
HOLD_S = 22
"""Seconds; longer than a lease."""


def load(variant: str | None) -> "ChaosDomain":
    """The entry point."""
    return ChaosDomain()


class ChaosDomain:
    name = "chaos"
    version = "chaos 1"

    def __init__(self) -> None:
        self._shop = load_shop(None)
        self.splits, self.task = self._shop.splits, self._shop.task

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        return ChaosEnvironment(self._shop.open(split, index, args), index)


class ChaosEnvironment:
    def __init__(self, environment: Environment, task: int) -> None:
        self.tools, self.system_prompt = environment.tools, environment.system_prompt
        self.reset, self.grade = environment.reset, environment.grade
        self._step = environment.step
        self._task = task
        self._steps = 0

    def step(self, action: Action) -> Observation:
        self._steps += 1
        if self._steps == FAULTY_STEP:
            inject_faults(self._task)
        return self._step(action)


def inject_faults(task: int) -> None:
    """Do what is ordered for this task."""
    for order in sorted(Path(os.environ["CHAOS_FAULTS_ORDERED"]).glob(f"*.{task}.*")):
        done = Path(os.environ["CHAOS_FAULTS_DONE"], order.name)
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
                ctypes.PyDLL(None).sleep(HOLD_S)  # keeps the interpreter's lock meanwhile
            case "spin":
                9**9**9  # holds the interpreter for ever
            case "die":
                os._exit(137)  # as after the kernel's OOM killer
