"""Reads a task's folder: Harbor's form (`task.toml`), or the older one of terminal-bench
(`task.yaml`).

Harbor's: https://harborframework.com/docs/tasks. What it asks for that is not done here is refused
by name, as a JobFailure, and what carries no instruction (authors, difficulty) is ignored. It does
not know containers.
"""

import hashlib
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollq.env import Json
from rollq.errors import JobFailure
from rollq.pip_extras import install_line

HARBOR, TERMINAL_BENCH = "task.toml", "task.yaml"
DOCKERFILE = "Dockerfile"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
"""A value that Harbor takes from its machine's environment: `${NAME}`, `${NAME:-default}`."""
ARTIFACTS = "/logs/artifacts"
"""What lies here is always copied to a container of the tests."""
MB = 1 << 20
LONGEST_S = 999_999.0
"""Longest time of a command, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A container as a task wants it."""

    dockerfile: Path | None
    """The folder with the Dockerfile; None where `image` is ready-made."""
    image: str
    build_s: float = 600.0
    cpus: float = 1.0
    memory: int = 2048 * MB
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    """Where commands begin, in place of the image's."""
    network: bool = True
    """It may have a network, if the worker has one for it."""


@dataclass(frozen=True, kw_only=True)
class TaskFolder:
    """What one task's folder says."""

    path: Path
    instruction: str
    place: Place
    user: str = ""
    agent_s: float
    """Longest time of one command of the agent's, in seconds."""
    tests_s: float
    tests_place: Place | None = None
    """A container of their own for the tests."""
    artifacts: Sequence[str] = ()
    """What is copied there from the agent's container."""
    tests: Mapping[str, Path]
    """What is uploaded before the tests: paths inside, and files or folders. An image of their own
    may have them.
    """
    test_command: str
    """Run by a shell."""
    rewards: bool
    """The tests write a reward file. Otherwise their exit code is the grade: 0 is 1.0."""
    tests_env: Mapping[str, str] = field(default_factory=dict)
    tests_user: str = ""
    solution: Path | None = None
    """A script, or a folder with `solve.sh`."""
    solution_env: Mapping[str, str] = field(default_factory=dict)


def task_folders(folder: Path) -> list[Path]:
    """The tasks of a folder in the order of their names: itself, or the folders in it. Raises
    JobFailure when there is none.
    """
    if _is_task(folder):
        return [folder]
    try:
        tasks = sorted(path for path in folder.iterdir() if _is_task(path))
    except OSError as e:
        raise JobFailure(f"{folder}: {e.strerror or e}") from e
    if not tasks:
        raise JobFailure(
            f"{folder} has no task: neither it nor a folder in it has {HARBOR} or {TERMINAL_BENCH}"
        )
    return tasks


def _is_task(path: Path) -> bool:
    return (path / HARBOR).is_file() or (path / TERMINAL_BENCH).is_file()


def digest(*paths: Path) -> str:
    """A hash of all files and links below the folders: their names and contents, whether they may
    be run, and where links lead.
    """
    found = hashlib.sha256()
    for path in paths:
        for file in sorted(
            below for below in path.rglob("*") if below.is_file() or below.is_symlink()
        ):
            content, mode = (file.read_bytes(), file.stat().st_mode) if file.is_file() else (b"", 0)
            link = os.readlink(file) if file.is_symlink() else ""
            runs = mode & 0o111 != 0
            found.update(
                os.fsencode(f"{file.relative_to(path.parent)}\0{link}\0{runs}\0{len(content)}\0")
            )
            found.update(content)
    return found.hexdigest()[:16]


def read(path: Path) -> TaskFolder:
    """The task of that folder. Raises JobFailure when it cannot be played, with the reason."""
    try:
        return _harbor(path) if (path / HARBOR).is_file() else _terminal_bench(path)
    except (OSError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as e:
        raise JobFailure(f"the task {path.name}: {type(e).__name__}: {e}") from e


def _harbor(path: Path) -> TaskFolder:
    told = tomllib.loads((path / HARBOR).read_text())
    verifier, agent, solution = (_table(told, name) for name in ("verifier", "agent", "solution"))
    mode = verifier.get("environment_mode", "shared")
    own = mode == "separate" or "environment" in verifier
    _refuse(
        path,
        {
            "several steps": bool(told.get("steps")),
            f"the environment_mode {mode!r}": mode not in ("shared", "separate"),
        },
    )
    if not (path / "tests" / "test.sh").is_file():
        raise JobFailure(f"the task {path.name} has no tests/test.sh")
    bundled = own and (path / "tests" / "Dockerfile").is_file()
    tests = _table(verifier, "environment") or ({} if bundled else _table(told, "environment"))
    return TaskFolder(
        path=path,
        instruction=(path / "instruction.md").read_text(),
        place=_place(path, path / "environment", _table(told, "environment")),
        user=str(agent.get("user", "")),
        agent_s=_seconds(agent, "timeout_sec", 600),
        tests_s=_seconds(verifier, "timeout_sec", 600),
        tests_place=_place(path, path / ("tests" if bundled else "environment"), tests)
        if own
        else None,
        artifacts=_artifacts(path, told),
        tests={} if bundled else {"/tests": path / "tests"},
        test_command="/tests/test.sh",
        rewards=True,
        tests_env=_variables(path, _table(verifier, "env")),
        tests_user=str(verifier.get("user", "")),
        solution=path / "solution" if (path / "solution" / "solve.sh").is_file() else None,
        solution_env=_variables(path, _table(solution, "env")),
    )


def _place(path: Path, folder: Path, told: Mapping[str, Any]) -> Place:
    """The container that a table `environment` describes, with the Dockerfile of the folder or a
    ready-made image.
    """
    image = str(told.get("docker_image") or "")
    _refuse(
        path,
        {
            "Windows": str(told.get("os", "linux")).lower() != "linux",
            "GPUs": bool(told.get("gpus")) or bool(told.get("tpu")),
            "MCP servers": bool(told.get("mcp_servers")),
            "a healthcheck": bool(told.get("healthcheck")),
            "docker compose": any((folder / name).exists() for name in COMPOSE),
        },
    )
    if not image and not (folder / DOCKERFILE).is_file():
        raise JobFailure(
            f"the task {path.name} has neither {folder.name}/{DOCKERFILE} nor a docker_image"
        )
    return Place(
        dockerfile=None if image else folder,
        image=image or f"rollq-task:{digest(folder)}",
        build_s=_seconds(told, "build_timeout_sec", 600),
        cpus=_above_0("cpus", told.get("cpus", 1)),
        memory=_memory(told),
        env=_variables(path, _table(told, "env")),
        folder=told.get("workdir"),
        network=_network(told),
    )


def _artifacts(path: Path, told: Mapping[str, Any]) -> tuple[str, ...]:
    listed = told.get("artifacts", [])
    entries = [entry if isinstance(entry, dict) else {"source": entry} for entry in listed]
    if not isinstance(listed, list) or not all(
        isinstance(entry.get("source"), str) for entry in entries
    ):
        raise TypeError("artifacts is not a list of paths")
    _refuse(
        path,
        {
            "artifacts of a service": any(entry.get("service") for entry in entries),
            "artifacts with exceptions": any(entry.get("exclude") for entry in entries),
        },
    )
    return (
        ARTIFACTS,
        *(entry["source"] for entry in entries if entry["source"].rstrip("/") != ARTIFACTS),
    )


def _table(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = told.get(name, {})
    if not isinstance(table, dict):
        raise TypeError(f"{name} is a {type(table).__name__}, not a table")
    return table


def _refuse(path: Path, asked: Mapping[str, bool]) -> None:
    if wanted := [what for what, asks in asked.items() if asks]:
        raise JobFailure(
            f"the task {path.name} asks for {' and '.join(wanted)}, which is not played here"
        )


def _network(environment: Mapping[str, Any]) -> bool:
    mode = environment.get("network_mode")
    return (
        environment.get("allow_internet", True) is not False if mode is None else mode == "public"
    )


def _seconds(told: Mapping[str, Any], name: str, default: float) -> float:
    seconds = float(told.get(name) or default)
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(f"{name} is {seconds:g}, not a number above 0 and at most {LONGEST_S:g}")
    return seconds


def _memory(environment: Mapping[str, Any]) -> int:
    """In bytes. The older form is a text such as `2G`."""
    if (text := environment.get("memory")) is None:
        return int(_above_0("memory_mb", environment.get("memory_mb", 2048)) * MB)
    read_as = re.fullmatch(r"\s*([\d.]+)\s*([KMG]?)i?B?\s*", str(text), re.IGNORECASE)
    if read_as is None:
        raise ValueError(f"memory is {text!r}, not a size such as 2G")
    return int(
        _above_0("memory", read_as[1])
        * {"K": 1 << 10, "": MB, "M": MB, "G": 1 << 30}[read_as[2].upper()]
    )


def _above_0(name: str, told: Any) -> float:
    number = float(told)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {number:g}, not a number above 0")
    return number


def _variables(path: Path, told: Mapping[str, Json]) -> dict[str, str]:
    """Variables of a task. A value of the worker's environment is never given away: its default
    stands for it.
    """

    def default(found: "re.Match[str]") -> str:
        if found[2] is None:
            raise JobFailure(
                f"the task {path.name} asks for the variable {found[1]} of this machine, "
                "which a worker does not give"
            )
        return found[2]

    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in told.items()
    }
    return {name: VARIABLE.sub(default, text) for name, text in texts.items()}


def _terminal_bench(path: Path) -> TaskFolder:
    told = _yaml(path / TERMINAL_BENCH)
    service = _service(path)
    context = path / service["build"]
    if not context.resolve().is_relative_to(path.resolve()) or not (context / DOCKERFILE).is_file():
        raise JobFailure(f"the task {path.name} has no Dockerfile where it should be built")
    for name in ("tests", "run-tests.sh"):
        if not (path / name).exists():
            raise JobFailure(f"the task {path.name} has no {name}")
    script = path / "solution.sh"
    return TaskFolder(
        path=path,
        instruction=str(told["instruction"]),
        place=Place(
            dockerfile=context,
            image=f"rollq-task:{digest(context)}",
            env=service["environment"],
            folder=service.get("working_dir"),
        ),
        agent_s=_seconds(told, "max_agent_timeout_sec", 360),
        tests_s=_seconds(told, "max_test_timeout_sec", 60),
        tests={"/tests": path / "tests", "/tests/run-tests.sh": path / "run-tests.sh"},
        test_command="TEST_DIR=/tests bash /tests/run-tests.sh",
        rewards=False,
        solution=script if script.is_file() else None,
    )


def _service(path: Path) -> Mapping[str, Any]:
    """The one service of the task's compose file, with the folder of its Dockerfile and its
    variables.
    """
    file = next((path / name for name in COMPOSE if (path / name).is_file()), None)
    services = _table(_yaml(file), "services") if file else {"client": {}}
    _refuse(path, {"several containers": len(services) != 1})
    [service] = (_table(services, name) for name in services)
    played = {
        "build",
        "image",
        "container_name",
        "command",
        "volumes",
        "environment",
        "working_dir",
        "expose",
    }
    build = service.get("build", ".")
    build = build if isinstance(build, dict) else {"context": build}
    variables = service.get("environment") or {}
    if isinstance(variables, list):
        variables = dict(
            text.partition("=")[::2] if "=" in text else (text, None) for text in variables
        )
    # One without a value has that of the machine, as `${NAME}` has.
    variables = {
        name: f"${{{name}}}" if value is None else value for name, value in variables.items()
    }
    _refuse(
        path,
        {
            **{f"{name!r} of docker compose": True for name in sorted({*service} - played)},
            "a build with arguments": bool({*build} - {"context", "dockerfile"})
            or build.get("dockerfile", DOCKERFILE) != DOCKERFILE,
            "volumes": any("T_BENCH" not in str(volume) for volume in service.get("volumes", ())),
        },
    )
    own = {name: value for name, value in variables.items() if "T_BENCH" not in str(value)}
    return {**service, "build": build.get("context", "."), "environment": _variables(path, own)}


def _yaml(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as e:
        raise JobFailure(f"{file.name} needs the package pyyaml: {install_line('harbor')}") from e

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Only `true` and `false` are booleans, as for docker compose; `yes` and `off`
        are texts.
        """

        yaml_implicit_resolvers: Mapping[str, Any] = {
            letter: [
                (tag, form) for tag, form in known if letter in "tTfF" or not tag.endswith(":bool")
            ]
            for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        told = yaml.load(file.read_text(), Loader)
    except yaml.YAMLError as e:
        raise JobFailure(f"{file}: {e}") from e
    if not isinstance(told, dict):
        raise JobFailure(f"{file} is no mapping")
    return told
