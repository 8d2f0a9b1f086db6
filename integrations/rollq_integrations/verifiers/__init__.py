"""Tasksets of the package `verifiers`.

They are called `verifiers:NAME`, or come with another configuration from a file of your own:

    load = taskset("my-taskset", difficulty="hard")

The policy talks and calls the tools of the task, as with the package's own `null` harness, but
rollq samples its turns. What it says without a call is its answer.

Rewards of verifiers may limit their time by signals. Those work in a process's main thread only:
elsewhere the package gives 0.0 for a right answer. So an episode is played in a main thread, which
every isolated episode has.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from rollq.env import STOP_MARKER, Json, Task
from rollq.errors import JobFailure
from rollq_integrations.verifiers.episode import Episode
from rollq_integrations.verifiers.package import installed, only_in_main_thread
from rollq_integrations.verifiers.tasks import playable_tasks, prompt_of

SPLIT = "train"
"""The only split: a taskset is one list of tasks."""


def load(variant: str | None) -> "TasksetDomain":
    """The entry point. Raises JobFailure."""
    if not variant:
        raise JobFailure(
            "name the taskset, as in verifiers:NAME, where NAME is its installed package"
        )
    return taskset(variant)(None)


def taskset(name: str, **config: Json) -> Callable[[str | None], "TasksetDomain"]:
    """The `load` of an environment with that taskset's tasks; `config` are fields of its
    configuration.

    Raises JobFailure for one that cannot be played, and without the package or with another version
    of it.
    """
    domain = TasksetDomain(name, config)
    return lambda variant: domain


class TasksetDomain:
    """Implements rollq.env.Domain."""

    def __init__(self, name: str, config: Mapping[str, Json]) -> None:
        version = installed()
        self.name = f"verifiers:{name}"
        self._tasks = playable_tasks(name, config)
        digest = sha256("".join(task.hash for task in self._tasks).encode()).hexdigest()[:12]
        self.version = f"verifiers {version} {name} {digest}"

    def splits(self) -> Mapping[str, int]:
        return {SPLIT: len(self._tasks)}

    def task(self, split: str, index: int) -> Task:
        task = self._task(split, index)
        question = prompt_of(task.data)[1]
        return Task(
            id=task.data.name or f"{SPLIT}/{index}",
            hash=task.hash[:16],
            instruction=question,
            opening=question,
            replies=(STOP_MARKER,),
            moves=(),
        )

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> "Episode":
        if args:
            raise JobFailure(
                f"a taskset takes no env_args, not {dict(args)!r:.200}; configure it in "
                "a file: taskset()"
            )
        only_in_main_thread(self.name)
        return Episode(self._task(split, index))

    def _task(self, split: str, index: int) -> Any:
        if split != SPLIT or not 0 <= index < len(self._tasks):
            raise JobFailure(
                f"there is no task {index} of split {split!r}; {self.name} has "
                f"{len(self._tasks)} of {SPLIT!r}"
            )
        return self._tasks[index]
