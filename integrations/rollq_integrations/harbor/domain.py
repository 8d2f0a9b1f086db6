"""Task folders as an environment: a container for each episode, a tool `bash`, and the task's own
tests as its grade.

The policy calls `bash` until it answers in words, which ends the episode. A failure of image,
container, tests or time is an EnvironmentFailure, never a reward of 0, unless the tests do grade a
container in which no policy was. It does not know how containers are made or how folders are read.
"""

import base64
import gzip
import io
import json
import math
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from rollq.env import (
    RESPOND,
    STOP_MARKER,
    Action,
    CommandResult,
    Grade,
    Json,
    Observation,
    Task,
    User,
    attempt_labels,
)
from rollq.env.attempt import labelled
from rollq.errors import EnvironmentFailure, JobFailure
from rollq_integrations.harbor.folder import read, task_folders
from rollq_integrations.harbor.harbor_form import ARTIFACTS
from rollq_integrations.harbor.task_folder import Place, TaskFolder, digest
from rollq_integrations.sandbox import Container, as_told, image_of, pull

COMMAND_S = 60.0
"""Longest time of a command in seconds that names none."""
LARGEST_SOLUTION = 96_000
"""Number of characters of a solution that can be one command: Linux takes 131,072."""
LOGS, AGENT_LOGS = "/logs/verifier", "/logs/agent"
SOLUTION = "/solution"
FOLDERS = (ARTIFACTS, AGENT_LOGS, SOLUTION)
"""Folders of every container, in which every user may write."""
TEXT, NUMBERS = f"{LOGS}/reward.txt", f"{LOGS}/reward.json"
"""Where tests write the reward: a number, or an object of numbers, of which `reward` counts."""
LARGEST = 1 << 53
"""Every number that tests write is smaller."""
NO_GRADE = 125
"""From this exit code on a command was not found, cannot run, or was killed; Podman says 125 where
it cannot start one.
"""
SHOWN = 4000
"""Number of characters of the tests' output that the grade's info has."""
BASH: Json = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command in bash, in a shell of its own, and returns what it "
        "writes. When the task is done, say so without calling a tool.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "seconds": {
                    "type": "number",
                    "description": f"its longest time; {COMMAND_S:g} if it is left out",
                },
            },
            "required": ["command"],
        },
    },
}


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
        for place in (folder.place, folder.tests_place):
            if place is not None:
                _have_image(place)
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


class HarborEpisode:
    """Implements rollq.env.Environment."""

    tools: Sequence[Json] = (BASH,)
    system_prompt = ""

    def __init__(self, task: TaskFolder) -> None:
        self._task = task
        self.longest_step_s = task.agent_s + COMMAND_S
        self.longest_grade_s = 3 * (task.tests_s + 4 * COMMAND_S)
        self._labels = attempt_labels()
        self.sandbox = _container(task.place)

    def reset(self, user: User) -> str:
        return user.open()

    def step(self, action: Action) -> Observation:
        if action.name == RESPOND:
            return Observation("", done=True)
        if action.name != "bash":
            return Observation(f"Error: there is no tool {action.name!r}")
        command = action.arguments.get("command")
        seconds = action.arguments.get("seconds", COMMAND_S)
        is_time = type(seconds) in (int, float) and 0 < seconds < math.inf
        if not isinstance(command, str) or not is_time:
            return Observation("Error: bash takes command, a text, and seconds, a number above 0")
        longest = float(min(seconds, self._task.agent_s))
        result = self.sandbox.run(["bash", "-c", command], seconds=longest, user=self._task.user)
        return Observation(as_told(result))

    def grade(self) -> Grade:
        """The grade of the tests. Where they give none, they run where no policy was: if they give
        none there, the task is at fault. Otherwise they run again, without the policy's processes:
        if they still give none, the policy has spoiled them.
        """
        try:
            return self._grade_work()
        except EnvironmentFailure:
            place = self._task.tests_place or self._task.place
            with labelled(self._labels), _container(place) as untouched:
                self._grade_in(untouched)
        self.sandbox.end_processes()
        try:
            return self._grade_work()
        except EnvironmentFailure as e:
            return Grade(0.0, {"rewards": {}, "tests": str(e)[-SHOWN:]})

    def _grade_work(self) -> Grade:
        if self._task.tests_place is None:
            return self._grade_in(self.sandbox)
        with labelled(self._labels), _container(self._task.tests_place) as own:
            for path in self._task.artifacts:
                self.sandbox.copy(path, own)
            return self._grade_in(own)

    def _grade_in(self, box: Container) -> Grade:
        self._prepare(
            box,
            ["rm", "-rf", LOGS, *self._task.tests],
            ["mkdir", "-p", LOGS],
            ["chown", self._task.tests_user or box.user, LOGS],
        )
        for target, source in self._task.tests.items():
            box.upload(source, target)
        if self._task.rewards:
            self._prepare(box, ["chmod", "+x", "/tests/test.sh"])
        result = box.run(
            ["sh", "-c", self._task.test_command],
            seconds=self._task.tests_s,
            env=self._task.tests_env,
            user=self._task.tests_user,
        )
        if result.stopped:
            raise EnvironmentFailure(
                f"the tests of {self._task.path.name} were stopped: {result.stopped}"
            )
        if not self._task.rewards and result.code >= NO_GRADE:
            raise EnvironmentFailure(
                f"the tests of {self._task.path.name} did not run: {as_told(result)[-2000:]}"
            )
        rewards = {"reward": float(result.code == 0)}
        if self._task.rewards:
            rewards = self._rewards(box)
        info = {"rewards": rewards, "tests": result.output[-SHOWN:]}
        return Grade(self._reward(rewards, result), info)

    def _prepare(self, box: Container, *commands: Sequence[str]) -> None:
        """Runs commands as root, so that the agent's user, if it has one, cannot write the rewards
        of the tests.
        """
        result = box.run(["sh", "-c", " && ".join(map(shlex.join, commands))], user="root")
        if result.code or result.stopped:
            raise EnvironmentFailure(f"{self._task.path.name}: {as_told(result)}")

    def close(self) -> None:
        self.sandbox.close()

    def _rewards(self, box: Container) -> Json:
        """The rewards that the tests wrote. Raises EnvironmentFailure for an unreadable file."""
        for path, reading in ((NUMBERS, _numbers), (TEXT, lambda text: {"reward": float(text)})):
            try:
                return reading(box.download(path).decode())
            except FileNotFoundError:
                continue
            except (ValueError, RecursionError) as e:
                raise EnvironmentFailure(
                    f"the tests of {self._task.path.name} wrote {path}: {e}"
                ) from e
        return {}

    def _reward(self, rewards: Json, result: CommandResult) -> float:
        reward = rewards.get("reward")
        if reward is None and len(rewards) == 1:
            [reward] = rewards.values()
        if reward is not None and 0.0 <= reward <= 1.0:
            return float(reward)
        problem = "no reward"
        if rewards:
            problem = f"the rewards {rewards}, where one `reward` from 0 to 1 is needed"
        raise EnvironmentFailure(
            f"the tests of {self._task.path.name} ended with code {result.code} and "
            f"{problem}; they said:\n{result.output[-2000:]}"
        )


def _task(folder: TaskFolder) -> Task:
    return Task(
        id=folder.path.name,
        hash=digest(folder.path),
        instruction=folder.instruction,
        opening=folder.instruction,
        replies=(STOP_MARKER,),
        moves=() if folder.solution is None else _oracle(folder),
    )


def _have_image(place: Place) -> None:
    if place.dockerfile is None:
        pull(place.image)
    else:
        image_of(place.dockerfile, place.image, place.build_s)


def _container(place: Place) -> Container:
    return Container(
        place.image,
        cpus=place.cpus,
        memory=place.memory,
        env=place.env,
        folder=place.folder,
        folders=FOLDERS,
        network=place.network,
    )


def _numbers(text: str) -> Json:
    rewards = json.loads(text)
    if not isinstance(rewards, dict):
        rewards = {"reward": rewards}
    for value in rewards.values():
        if type(value) not in (int, float, bool) or not abs(value) < LARGEST:
            raise ValueError(f"not finite numbers: {text:.200}")
    return rewards


def _oracle(task: TaskFolder) -> tuple[Action, ...]:
    """The moves of a perfect policy: the task's own solution as one command. It is unpacked at
    SOLUTION, where such scripts look for their files. There are none where it is too long for a
    command.
    """
    source = task.solution
    assert source is not None, "it has one"
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
    if len(command) > LARGEST_SOLUTION:
        return ()
    return (
        Action("bash", {"command": command, "seconds": task.agent_s}),
        Action(RESPOND, {"content": "Done."}),
    )


def _without_dates(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = 0
    return entry
