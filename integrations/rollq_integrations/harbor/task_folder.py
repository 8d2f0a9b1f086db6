"""A task as its folder describes it, and the checks that both forms of folders share.

Requests that are not carried out here are refused by name, as a JobFailure. It does not know
containers, nor the files of either form.
"""

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollq.env import Json, SandboxSpec
from rollq.errors import JobFailure

DOCKERFILE = "Dockerfile"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
MB = 1 << 20
MOST_CPUS = 4096.0
LEAST_MEMORY = 6 * MB
"""Docker takes no less."""
MOST_MEMORY = 1 << 50
SIZE = re.compile(r"\s*([\d.]+)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
IMAGE = re.compile(r"[a-zA-Z0-9][\w.:/@-]*")
USER = re.compile(r"(\w[\w.-]*(:\w[\w.-]*)?)?")
"""A name or a number, and a group if need be; empty for the image's."""
LONGEST_S = 999_999.0
"""Longest time of a command, in seconds."""
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
"""A value that Harbor takes from its machine's environment: `${NAME}`, `${NAME:-default}`."""
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Healthcheck:
    """A command that says by its exit code 0 that a sandbox is ready. After the start period so
    many failures in a row fail the start.
    """

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3

    def __post_init__(self) -> None:
        for name in ("interval_s", "timeout_s", "start_interval_s"):
            above_0(f"{name} of a healthcheck", getattr(self, name))
        if not self.retries > 0 or not 0 <= self.start_period_s <= LONGEST_S:
            raise ValueError("a healthcheck needs retries, and a start_period of at least 0 s")

    @property
    def longest_s(self) -> float:
        start_s = self.start_period_s + self.start_interval_s + self.timeout_s
        return start_s + self.retries * (self.interval_s + self.timeout_s)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A container beside the agent's, which runs a program of its own."""

    place: SandboxSpec
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """An instruction, and the tests of the work that it asks for."""

    name: str = ""
    instruction: str
    user: str = ""
    agent_s: float
    """Longest time of one command of the agent's, in seconds."""
    tests_s: float
    tests: Sequence[tuple[str, Path]]
    """Uploads before the tests: paths inside, and files or folders. An image of their own may have
    them.
    """
    tests_env: Mapping[str, str] = field(default_factory=dict)
    tests_user: str = ""
    artifacts: Sequence[str] = ()
    """Paths that are copied from the agent's container to that of the tests."""
    files: Path | None = None
    """A folder that is uploaded before the step; its `setup.sh`, if any, runs then."""
    healthcheck: Healthcheck | None = None
    smallest_rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards below which no further step follows."""
    solution: Path | None = None
    """A script, or a folder with `solve.sh`."""


@dataclass(frozen=True, kw_only=True)
class TaskFolder:
    """The task of a folder."""

    path: Path
    place: SandboxSpec
    services: Mapping[str, Service] = field(default_factory=dict)
    """Services by name, each after those on which it depends."""
    healthcheck: Healthcheck | None = None
    tests_place: SandboxSpec | None = None
    """A container of their own for the tests."""
    test_command: str
    """Run by a shell."""
    rewards: bool
    """The tests write a reward file. Otherwise their exit code is the grade: 0 is 1.0."""
    steps: Sequence[Step]
    final: bool = False
    """The last step's reward is the grade, in place of the mean of all."""
    solution_env: Mapping[str, str] = field(default_factory=dict)


def digest(*paths: Path) -> str:
    """A hash of all files and links below the folders: names, contents, the right to be run, and
    the targets of links.
    """
    sha256 = hashlib.sha256()
    for path in paths:
        files = [below for below in path.rglob("*") if below.is_file() or below.is_symlink()]
        for file in sorted(files):
            content = b""
            runs = False
            if file.is_file():
                content = file.read_bytes()
                runs = file.stat().st_mode & 0o111 != 0
            link = os.readlink(file) if file.is_symlink() else ""
            head = f"{file.relative_to(path.parent)}\0{link}\0{runs}\0{len(content)}\0"
            sha256.update(os.fsencode(head))
            sha256.update(content)
    return sha256.hexdigest()[:16]


def table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise TypeError(f"{name} is a {type(table).__name__}, not a table")
    return table


def refuse(path: Path, requests: Mapping[str, bool]) -> None:
    """Raises JobFailure if one of these requests, which are not carried out here, is made."""
    made = [request for request, is_made in requests.items() if is_made]
    if made:
        raise JobFailure(
            f"the task {path.name} asks for {' and '.join(made)}, which is not played here"
        )


def seconds(settings: Mapping[str, Any], name: str, default: float) -> float:
    limit = settings.get(name)
    limit_s = default if limit is None else float(limit)
    if not 0 < limit_s <= LONGEST_S:
        raise ValueError(f"{name} is {limit_s:g}, not a number above 0 and at most {LONGEST_S:g}")
    return limit_s


def above_0(name: str, value: Any) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {number:g}, not a number above 0")
    return number


def cpus(settings: Mapping[str, Any]) -> float:
    number = above_0("cpus", settings.get("cpus", 1))
    if number > MOST_CPUS:
        raise ValueError(f"cpus is {number:g}, not at most {MOST_CPUS:g}")
    return number


def memory(size: float) -> int:
    """A number of bytes that a container can have."""
    if not LEAST_MEMORY <= size <= MOST_MEMORY:
        raise ValueError(f"memory is {size:g} bytes, not from {LEAST_MEMORY} to {MOST_MEMORY}")
    return int(size)


def memory_of(text: Any, unit: int) -> int:
    """The bytes of a size such as `2G`; a bare number is in units."""
    size = SIZE.fullmatch(str(text))
    if size is None:
        raise ValueError(f"memory is {text!r}, not a size such as 2G")
    letter = size[2].upper()
    factor = 1024 ** " KMGT".index(letter) if letter else unit
    return memory(above_0("memory", size[1]) * factor)


def matching(form: "re.Pattern[str]", name: str, value: Any) -> str:
    text = str(value)
    if not form.fullmatch(text):
        raise ValueError(f"{name} cannot be {text!r}")
    return text


def variables(path: Path, settings: Mapping[str, Json]) -> dict[str, str]:
    """Variables of a task. A value of the worker's environment is never given away: its default
    stands for it.
    """

    def default(variable: "re.Match[str]") -> str:
        if variable[2] is None:
            raise JobFailure(
                f"the task {path.name} asks for the variable {variable[1]} of this machine, "
                "which a worker does not give"
            )
        return variable[2]

    values = {}
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not name or "=" in name or "\0" in f"{name}{text}":
            raise ValueError(f"no variable can be {name!r}, or have {text!r:.100}")
        values[name] = VARIABLE.sub(default, text)
    return values


def instruction_of(path: Path, text: str) -> str:
    """The instruction without the lines at its beginning that mark it as no training data (as
    Harbor leaves them out). Raises JobFailure if nothing is left.
    """
    lines = text.splitlines(keepends=True)
    while lines and (_CANARY.fullmatch(lines[0].strip()) or not lines[0].strip()):
        lines.pop(0)
    if not lines:
        raise JobFailure(f"the task {path.name} has an empty instruction")
    return "".join(lines)
