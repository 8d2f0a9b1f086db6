"""Reads a task's folder: Harbor's form (`task.toml`), or the older one of terminal-bench
(`task.yaml`).

Harbor's: https://harborframework.com/docs/tasks. Requests that are not carried out here are refused
by name, as a JobFailure. Keys without an instruction (authors, difficulty) are ignored. It does not
know containers.
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
"""The folder that is always copied to a container of the tests."""
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
    """The task of a folder."""

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
    """Paths that are copied there from the agent's container."""
    tests: Mapping[str, Path]
    """Uploads before the tests: paths inside, and files or folders. An image of their own may have
    them.
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


def read(path: Path) -> TaskFolder:
    """The task of that folder. Raises JobFailure when it cannot be played, with the reason."""
    try:
        return _harbor(path) if (path / HARBOR).is_file() else _terminal_bench(path)
    except (OSError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as e:
        raise JobFailure(f"the task {path.name}: {type(e).__name__}: {e}") from e


def _harbor(path: Path) -> TaskFolder:
    settings = tomllib.loads((path / HARBOR).read_text())
    verifier, agent, solution = (
        _table(settings, name) for name in ("verifier", "agent", "solution")
    )
    mode = verifier.get("environment_mode", "shared")
    _refuse(
        path,
        {
            "several steps": bool(settings.get("steps")),
            f"the environment_mode {mode!r}": mode not in ("shared", "separate"),
        },
    )
    if not (path / "tests" / "test.sh").is_file():
        raise JobFailure(f"the task {path.name} has no tests/test.sh")
    tests_place = None
    tests = {"/tests": path / "tests"}
    if mode == "separate" or "environment" in verifier:
        tests_place, is_bundled = _tests_place(path, settings, verifier)
        if is_bundled:
            tests = {}
    return TaskFolder(
        path=path,
        instruction=(path / "instruction.md").read_text(),
        place=_place(path, path / "environment", _table(settings, "environment")),
        user=str(agent.get("user", "")),
        agent_s=_seconds(agent, "timeout_sec", 600),
        tests_s=_seconds(verifier, "timeout_sec", 600),
        tests_place=tests_place,
        artifacts=_artifacts(path, settings),
        tests=tests,
        test_command="/tests/test.sh",
        rewards=True,
        tests_env=_variables(path, _table(verifier, "env")),
        tests_user=str(verifier.get("user", "")),
        solution=path / "solution" if (path / "solution" / "solve.sh").is_file() else None,
        solution_env=_variables(path, _table(solution, "env")),
    )


def _tests_place(
    path: Path, settings: Mapping[str, Any], verifier: Mapping[str, Any]
) -> tuple[Place, bool]:
    """The container of the tests, and true if its image comes with them."""
    own = _table(verifier, "environment")
    if (path / "tests" / "Dockerfile").is_file():
        return _place(path, path / "tests", own), True
    return _place(path, path / "environment", own or _table(settings, "environment")), False


def _place(path: Path, folder: Path, settings: Mapping[str, Any]) -> Place:
    """The container that a table `environment` describes, with the Dockerfile of the folder or a
    ready-made image.
    """
    image = str(settings.get("docker_image") or "")
    _refuse(
        path,
        {
            "Windows": str(settings.get("os", "linux")).lower() != "linux",
            "GPUs": bool(settings.get("gpus")) or bool(settings.get("tpu")),
            "MCP servers": bool(settings.get("mcp_servers")),
            "a healthcheck": bool(settings.get("healthcheck")),
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
        build_s=_seconds(settings, "build_timeout_sec", 600),
        cpus=_above_0("cpus", settings.get("cpus", 1)),
        memory=_memory(settings),
        env=_variables(path, _table(settings, "env")),
        folder=settings.get("workdir"),
        network=_network(settings),
    )


def _artifacts(path: Path, settings: Mapping[str, Any]) -> tuple[str, ...]:
    listed = settings.get("artifacts", [])
    entries = [entry if isinstance(entry, dict) else {"source": entry} for entry in listed]
    sources: list[Any] = [entry.get("source") for entry in entries]
    if not isinstance(listed, list) or not all(isinstance(source, str) for source in sources):
        raise TypeError("artifacts is not a list of paths")
    _refuse(
        path,
        {
            "artifacts of a service": any(entry.get("service") for entry in entries),
            "artifacts with exceptions": any(entry.get("exclude") for entry in entries),
        },
    )
    others = [source for source in sources if source.rstrip("/") != ARTIFACTS]
    return (ARTIFACTS, *others)


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise TypeError(f"{name} is a {type(table).__name__}, not a table")
    return table


def _refuse(path: Path, requests: Mapping[str, bool]) -> None:
    """Raises JobFailure if one of these requests, which are not carried out here, is made."""
    made = [request for request, is_made in requests.items() if is_made]
    if made:
        raise JobFailure(
            f"the task {path.name} asks for {' and '.join(made)}, which is not played here"
        )


def _network(environment: Mapping[str, Any]) -> bool:
    mode = environment.get("network_mode")
    if mode is None:
        return environment.get("allow_internet", True) is not False
    return bool(mode == "public")


def _seconds(settings: Mapping[str, Any], name: str, default: float) -> float:
    seconds = float(settings.get(name) or default)
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(f"{name} is {seconds:g}, not a number above 0 and at most {LONGEST_S:g}")
    return seconds


def _memory(environment: Mapping[str, Any]) -> int:
    """The memory in bytes. The older form is a text such as `2G`."""
    text = environment.get("memory")
    if text is None:
        return int(_above_0("memory_mb", environment.get("memory_mb", 2048)) * MB)
    size = re.fullmatch(r"\s*([\d.]+)\s*([KMG]?)i?B?\s*", str(text), re.IGNORECASE)
    if size is None:
        raise ValueError(f"memory is {text!r}, not a size such as 2G")
    units = {"K": 1 << 10, "": MB, "M": MB, "G": 1 << 30}
    return int(_above_0("memory", size[1]) * units[size[2].upper()])


def _above_0(name: str, value: Any) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {number:g}, not a number above 0")
    return number


def _variables(path: Path, settings: Mapping[str, Json]) -> dict[str, str]:
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

    variables = {}
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        variables[name] = VARIABLE.sub(default, text)
    return variables


def _terminal_bench(path: Path) -> TaskFolder:
    settings = _yaml(path / TERMINAL_BENCH)
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
        instruction=str(settings["instruction"]),
        place=Place(
            dockerfile=context,
            image=f"rollq-task:{digest(context)}",
            env=service["environment"],
            folder=service.get("working_dir"),
        ),
        agent_s=_seconds(settings, "max_agent_timeout_sec", 360),
        tests_s=_seconds(settings, "max_test_timeout_sec", 60),
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
    build = service.get("build", ".")
    if not isinstance(build, dict):
        build = {"context": build}
    has_arguments = bool({*build} - {"context", "dockerfile"})
    volumes = service.get("volumes", ())
    requests = {f"{name!r} of docker compose": True for name in sorted({*service} - _PLAYED_KEYS)}
    requests["a build with arguments"] = (
        has_arguments or build.get("dockerfile", DOCKERFILE) != DOCKERFILE
    )
    requests["volumes"] = any("T_BENCH" not in str(volume) for volume in volumes)
    _refuse(path, requests)
    environment = _variables(path, _environment(service))
    return {**service, "build": build.get("context", "."), "environment": environment}


_PLAYED_KEYS = frozenset(
    "build image container_name command volumes environment working_dir expose".split()
)
"""Keys of a service that are carried out, or change nothing here."""


def _environment(service: Mapping[str, Any]) -> dict[str, Json]:
    """The service's variables, but for those of terminal-bench's own harness."""
    listed = service.get("environment") or {}
    if isinstance(listed, list):
        pairs = [text.partition("=") for text in listed]
        listed = {name: value if equals else None for name, equals, value in pairs}
    variables = {}
    for name, value in listed.items():
        if value is None:  # that of the machine, as `${NAME}`
            value = f"${{{name}}}"
        if "T_BENCH" not in str(value):
            variables[name] = value
    return variables


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
                (tag, form)
                for tag, form in resolvers
                if letter in "tTfF" or not tag.endswith(":bool")
            ]
            for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        settings = yaml.load(file.read_text(), Loader)
    except yaml.YAMLError as e:
        raise JobFailure(f"{file}: {e}") from e
    if not isinstance(settings, dict):
        raise JobFailure(f"{file} is no mapping")
    return settings
