"""Task folders as an environment: each episode is a HarborEpisode. It does not know how folders are
read.
"""

import base64
import gzip
import io
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from rollq.env import RESPOND, STOP_MARKER, Action, Json, Task
from rollq.errors import JobFailure
from rollq_integrations.harbor.episode import HarborEpisode
from rollq_integrations.harbor.folder import read, task_folders
from rollq_integrations.harbor.room import SOLUTION
from rollq_integrations.harbor.task_folder import Step, TaskFolder, digest

LARGEST_SOLUTION = 96_000
"""Number of characters of a solution that can be one command: Linux takes 131,072."""


def load(folder: str | None) -> "HarborTasks":
    """The environment of a folder of tasks. Raises JobFailure when there is none."""
    if not folder:
        raise JobFailure("which tasks? --env harbor:DIR names a folder")
    return HarborTasks(Path(folder))


class HarborTasks:
    """Implements rollq.env.Domain. All tasks are in the split `train`, by the names of their
    folders.
    """

    name = "harbor"

    def __init__(self, folder: Path) -> None:
        self._tasks = task_folders(folder)
        self._folders: dict[int, tuple[TaskFolder, Task]] = {}

    @cached_property
    def version(self) -> str:
        return f"harbor {digest(*self._tasks)}"

    longest_open_s = 3600.0
    """An image may have to be built first. Each task bounds its own."""

    def splits(self) -> Mapping[str, int]:
        return {"train": len(self._tasks)}

    def task(self, split: str, index: int) -> Task:
        return self._read(split, index)[1]

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> "HarborEpisode":
        if args:
            raise JobFailure(f"a task folder takes no env_args, not {dict(args)!r:.200}")
        folder, _ = self._read(split, index)
        return HarborEpisode(folder)

    def _read(self, split: str, index: int) -> tuple[TaskFolder, Task]:
        """Reads a folder, once: the name of the environment has its hash."""
        if split != "train" or not 0 <= index < len(self._tasks):
            raise JobFailure(
                f"there is no task {index} of split {split!r}; there are {len(self._tasks)} of "
                "'train'"
            )
        if index not in self._folders:
            folder = read(self._tasks[index])
            self._folders[index] = folder, _task(folder)
        return self._folders[index]


def _task(folder: TaskFolder) -> Task:
    instruction = folder.steps[0].instruction
    return Task(
        id=folder.path.name,
        hash=digest(folder.path),
        instruction=instruction,
        opening=instruction,
        replies=(STOP_MARKER,),
        moves=tuple(_oracle(folder)),
    )


def _oracle(task: TaskFolder) -> Iterator[Action]:
    """The moves of a perfect policy: the task's own solution of each step as one command. There are
    none where a step has none, or one that is too long for a command.
    """
    commands = [_solution(task, step) for step in task.steps]
    if all(commands):
        for step, command in zip(task.steps, commands, strict=True):
            yield Action("bash", {"command": command, "seconds": step.agent_s})
            yield Action(RESPOND, {"content": "Done."})


def _solution(task: TaskFolder, step: Step) -> str:
    """A command that unpacks a solution at SOLUTION, where such scripts look for their files, and
    runs it; "" for none.
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
    settings = [f"{name}={shlex.quote(value)} " for name, value in task.solution_env.items()]
    variables = "".join(settings)
    text = base64.b64encode(gzip.compress(packed.getvalue(), mtime=0)).decode()
    command = (
        f"echo {text} | base64 -d | tar -xz -C {SOLUTION} && {variables}bash {SOLUTION}/solve.sh"
    )
    return command if len(command) <= LARGEST_SOLUTION else ""


def _without_dates(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = 0
    return entry
