"""Reads a task's folder in Harbor's form.

https://harborframework.com/docs/tasks describes it. `metadata`, `task` and the size of the disk
change nothing here. Every other key is carried out, or refused by its name.
"""

import re
import tomllib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from rollq.errors import JobFailure
from rollq_integrations.harbor.task_folder import (
    COMPOSE,
    DOCKERFILE,
    IMAGE,
    MB,
    USER,
    Place,
    TaskFolder,
    above_0,
    digest,
    instruction_of,
    matching,
    memory,
    refuse,
    seconds,
    table,
    variables,
)

HARBOR = "task.toml"
ARTIFACTS = "/logs/artifacts"
"""The folder that is always copied to a container of the tests."""
PUBLIC = "public"
"""The mode of a network that reaches everything."""
NO_NETWORK = "no-network"
MOST_CPUS = 4096.0
NETWORK_KEYS = frozenset("network_mode allowed_hosts".split())
TASK_KEYS = frozenset(
    "version schema_version source task metadata environment agent verifier solution steps "
    "multi_step_reward_strategy artifacts".split()
)
AGENT_KEYS = NETWORK_KEYS | {"timeout_sec", "user"}
VERIFIER_KEYS = NETWORK_KEYS | frozenset(
    "timeout_sec env user environment_mode environment collect".split()
)
SOLUTION_KEYS = frozenset({"env"})
ENVIRONMENT_KEYS = NETWORK_KEYS | frozenset(
    "build_timeout_sec docker_image os cpus memory_mb memory storage_mb storage gpus gpu_types tpu "
    "allow_internet mcp_servers env skills_dir healthcheck workdir".split()
)


def read(path: Path) -> TaskFolder:
    """The task of that folder. Raises JobFailure for a task that is not played here, and other
    errors for one that is not in this form.
    """
    settings = tomllib.loads((path / HARBOR).read_text("utf-8-sig"))
    environment, verifier, agent, solution = (
        table(settings, name) for name in ("environment", "verifier", "agent", "solution")
    )
    has_own_environment = "environment" in verifier
    mode = verifier.get("environment_mode", "separate" if has_own_environment else "shared")
    is_separate = mode == "separate"
    _refuse_unknown(path, settings, TASK_KEYS)
    _refuse_unknown(path, agent, AGENT_KEYS)
    _refuse_unknown(path, verifier, VERIFIER_KEYS)
    _refuse_unknown(path, solution, SOLUTION_KEYS)
    agent_mode = _mode(agent, _mode(environment))
    is_public = agent_mode == PUBLIC
    tests_are_public = _mode(verifier, _mode(environment)) == PUBLIC
    refuse(
        path,
        {
            "several steps": bool(settings.get("steps")),
            f"the environment_mode {mode!r}": mode not in ("shared", "separate"),
            "an environment of shared tests": mode == "shared" and has_own_environment,
            "commands that collect artifacts": bool(verifier.get("collect")),
            "an allowlist of hosts": bool(
                agent.get("allowed_hosts") or verifier.get("allowed_hosts")
            ),
            "a network for its agent alone or its tests alone": (
                not is_separate and is_public != tests_are_public
            ),
        },
    )
    _check_folders(path)
    tests_place = None
    tests = {"/tests": path / "tests"}
    if is_separate:
        tests_place, is_bundled = _tests_place(path, settings, verifier)
        if is_bundled:
            tests = {}
    return TaskFolder(
        path=path,
        instruction=instruction_of(path, (path / "instruction.md").read_text()),
        place=_place(path, path / "environment", environment, is_public),
        user=matching(USER, "user", agent.get("user", "")),
        agent_s=seconds(agent, "timeout_sec", 600),
        tests_s=seconds(verifier, "timeout_sec", 600),
        tests_place=tests_place,
        artifacts=_artifacts(path, settings),
        tests=tests,
        test_command="/tests/test.sh",
        rewards=True,
        tests_env=variables(path, table(verifier, "env")),
        tests_user=matching(USER, "user", verifier.get("user", "")),
        solution=path / "solution" if (path / "solution" / "solve.sh").is_file() else None,
        solution_env=variables(path, table(solution, "env")),
    )


def _check_folders(path: Path) -> None:
    """Raises JobFailure for a folder that is a link out of the task, and without tests."""
    for name in ("environment", "tests", "solution"):
        if not (path / name).resolve().is_relative_to(path.resolve()):
            raise JobFailure(f"the task {path.name} has its folder {name} elsewhere, by a link")
    if not (path / "tests" / "test.sh").is_file():
        raise JobFailure(f"the task {path.name} has no tests/test.sh")


def _refuse_unknown(path: Path, settings: Mapping[str, Any], known_keys: Set[str]) -> None:
    refuse(path, {f"the key {key!r}": True for key in sorted(set(settings) - known_keys)})


def _tests_place(
    path: Path, settings: Mapping[str, Any], verifier: Mapping[str, Any]
) -> tuple[Place, bool]:
    """The container of the tests, and true if its image comes with them."""
    own = table(verifier, "environment")
    environment = own or table(settings, "environment")
    network = _mode(verifier, _mode(environment)) == PUBLIC
    if (path / "tests" / DOCKERFILE).is_file():
        return _place(path, path / "tests", own, network), True
    return _place(path, path / "environment", environment, network), False


def _mode(settings: Mapping[str, Any], default: str | None = None) -> str:
    """The network mode of a table. A phase that has none takes that of its environment. Raises
    ValueError for another mode: a task must not get a network by a slip.
    """
    mode = settings.get("network_mode")
    allows_internet = settings.get("allow_internet", True)
    if mode not in (None, PUBLIC, NO_NETWORK):
        raise ValueError(f"network_mode is {mode!r}, not {PUBLIC} or {NO_NETWORK}")
    if not isinstance(allows_internet, bool):
        raise ValueError(f"allow_internet is {allows_internet!r}, not true or false")
    if mode is not None:
        return str(mode)
    if default is not None:
        return default
    return PUBLIC if allows_internet else NO_NETWORK


def _place(path: Path, folder: Path, settings: Mapping[str, Any], network: bool) -> Place:
    """The container that a table `environment` describes, with the Dockerfile of the folder or a
    ready-made image.
    """
    _refuse_unknown(path, settings, ENVIRONMENT_KEYS)
    image = settings.get("docker_image") or ""
    if image:
        image = matching(IMAGE, "docker_image", image)
    refuse(
        path,
        {
            "Windows": str(settings.get("os", "linux")).lower() != "linux",
            "GPUs": bool(settings.get("gpus")) or bool(settings.get("tpu")),
            "MCP servers": bool(settings.get("mcp_servers")),
            "a healthcheck": bool(settings.get("healthcheck")),
            "skills": bool(settings.get("skills_dir")),
            "an allowlist of hosts": bool(settings.get("allowed_hosts")),
            "docker compose": any((folder / name).exists() for name in COMPOSE),
        },
    )
    if not image and not (folder / DOCKERFILE).is_file():
        raise JobFailure(
            f"the task {path.name} has neither {folder.name}/{DOCKERFILE} nor a docker_image"
        )
    workdir = settings.get("workdir")
    if workdir is not None and not str(workdir).startswith("/"):
        raise ValueError(f"workdir is {workdir!r}, not a path from the root")
    return Place(
        dockerfile=None if image else folder,
        image=image or f"rollq-task:{digest(folder)}",
        build_s=seconds(settings, "build_timeout_sec", 600),
        cpus=_cpus(settings),
        memory=_memory(settings),
        env=variables(path, table(settings, "env")),
        folder=workdir,
        network=network,
    )


def _artifacts(path: Path, settings: Mapping[str, Any]) -> tuple[str, ...]:
    listed = settings.get("artifacts", [])
    if not isinstance(listed, list):
        raise TypeError("artifacts is not a list of paths")
    entries = [entry if isinstance(entry, dict) else {"source": entry} for entry in listed]
    sources: list[Any] = [entry.get("source") for entry in entries]
    if not all(isinstance(source, str) for source in sources):
        raise TypeError("artifacts is not a list of paths")
    refuse(
        path,
        {
            "artifacts of a service": any(entry.get("service") for entry in entries),
            "artifacts with exceptions": any(entry.get("exclude") for entry in entries),
        },
    )
    others = [source for source in sources if source.rstrip("/") != ARTIFACTS]
    return (ARTIFACTS, *others)


def _memory(environment: Mapping[str, Any]) -> int:
    """The memory in bytes. The older form is a text such as `2G`."""
    text = environment.get("memory")
    if text is None:
        return memory(above_0("memory_mb", environment.get("memory_mb", 2048)) * MB)
    size = re.fullmatch(r"\s*([\d.]+)\s*([KMG]?)i?B?\s*", str(text), re.IGNORECASE)
    if size is None:
        raise ValueError(f"memory is {text!r}, not a size such as 2G")
    units = {"K": 1 << 10, "": MB, "M": MB, "G": 1 << 30}
    return memory(above_0("memory", size[1]) * units[size[2].upper()])


def _cpus(settings: Mapping[str, Any]) -> float:
    cpus = above_0("cpus", settings.get("cpus", 1))
    if cpus > MOST_CPUS:
        raise ValueError(f"cpus is {cpus:g}, not at most {MOST_CPUS:g}")
    return cpus
