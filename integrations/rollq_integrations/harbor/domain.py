"""Task folders as an environment: each episode is a HarborEpisode. It does not know how folders are
read.
"""

import base64
import gzip
import io
import os
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from rollq.env import RESPOND, STOP_MARKER, Action, Json, Task
from rollq.errors import JobFailure
from rollq_integrations.harbor.episode import HarborEpisode
from rollq_integrations.harbor.folder import read as read_folder
from rollq_integrations.harbor.folder import task_folders
from rollq_integrations.harbor.room import SOLUTION
from rollq_integrations.harbor.task_folder import Step, TaskFolder, digest

LARGEST_SOLUTION = 96_000
"""Longest command, in characters, that carries a solution. Containers take arguments of 100,000
bytes.
"""


def load(folder: str | None) -> "HarborTasks":
    """The environment of a folder of tasks. Raises JobFailure when there is none."""
    if not folder:
        raise JobFailure("which tasks? --env harbor:DIR names a folder")
    return HarborTasks(Path(os.path.abspath(folder)))  # `.` is no name of a task


class _ReadTask(NamedTuple):
    folder: TaskFolder
    task: Task


class HarborTasks:
    """Implements rollq.env.Domain. All tasks are in the split `train`, by the names of their
    folders.
    """

    name = "harbor"
    longest_open_s = 3600.0
    """An image may have to be built first. Each task bounds its own."""

    def __init__(self, folder: Path) -> None:
        self._paths = task_folders(folder)
        self._tasks_read: dict[int, _ReadTask] = {}

    @cached_property
    def version(self) -> str:
        return f"harbor {digest(*self._paths)}"

    def splits(self) -> Mapping[str, int]:
        return {"train": len(self._paths)}

    def task(self, split: str, index: int) -> Task:
        return self._read(split, index).task

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> "HarborEpisode":
        if args:
            raise JobFailure(f"a task folder takes no env_args, not {dict(args)!r:.200}")
        return HarborEpisode(self._read(split, index).folder)

    def _read(self, split: str, index: int) -> _ReadTask:
        """Reads a folder once. It cannot change: the environment's name holds a hash of it."""
        if split != "train" or not 0 <= index < len(self._paths):
            raise JobFailure(
                f"there is no task {index} of split {split!r}; there are {len(self._paths)} of "
                "'train'"
            )
        if index not in self._tasks_read:
            folder = read_folder(self._paths[index])
            self._tasks_read[index] = _ReadTask(folder, _task(folder))
        return self._tasks_read[index]


def _task(folder: TaskFolder) -> Task:
    instruction = folder.steps[0].instruction
    return Task(
        id=folder.path.name,
        hash=digest(folder.path),
        instruction=instruction,
        opening=instruction,
        replies=(STOP_MARKER,),
        moves=tuple(_solution_moves(folder)),
    )


def _solution_moves(task: TaskFolder) -> Iterator[Action]:
    """The moves of a perfect policy: each step's solution as one command. None at all where a step
    has no solution, or one that is too long for a command.
    """
    commands = [_solution(task, step) for step in task.steps]
    if all(commands):
        for step, command in zip(task.steps, commands, strict=True):
            yield Action("bash", {"command": command, "seconds": step.agent_s})
            yield Action(RESPOND, {"content": "Done."})


def _solution(task: TaskFolder, step: Step) -> str:
    """A command that unpacks a solution at SOLUTION, where such scripts look for their files, and
    runs it. "" without a solution, or for one that is too long.
    """
    source = step.solution
    if source is None:
        return ""
    files = {"solve.sh": source}
    if source.is_dir():
        files = {path.name: path for path in sorted(source.iterdir())}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, file in files.items():
            tar.add(file, name, filter=_without_dates)
    assignments = "".join(
        f"{name}={shlex.quote(value)} " for name, value in task.solution_env.items()
    )
    text = base64.b64encode(gzip.compress(packed.getvalue(), mtime=0)).decode()
    command = (
        f"echo {text} | base64 -d | tar -xz -C {SOLUTION} && {assignments}bash {SOLUTION}/solve.sh"
    )
    return command if len(command) <= LARGEST_SOLUTION else ""


def _without_dates(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = 0
    return entry
