"""Reads a task's folder in Harbor's form.

https://harborframework.com/docs/tasks describes it. `metadata`, `task`, DESCRIPTIONS and the size
of the disk change nothing here. Every other key is carried out, or refused by its name.
"""

import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollq.env import SandboxSpec
from rollq.errors import JobFailure
from rollq_integrations.harbor.compose import Compose, read_compose
from rollq_integrations.harbor.task_folder import (
    COMPOSE,
    DOCKERFILE,
    IMAGE,
    MB,
    USER,
    Healthcheck,
    Step,
    TaskFolder,
    above_0,
    cpus,
    digest,
    instruction_of,
    matching,
    memory,
    memory_of,
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
NETWORK_KEYS = frozenset("network_mode allowed_hosts".split())
DESCRIPTIONS = frozenset(
    "name title slug category subcategory category_profile reference_pattern tags languages "
    "difficulty expert_time_estimate_hours canary_guid".split()
)
"""Keys that belong in `metadata`, and that tasks have beside it."""
TASK_KEYS = DESCRIPTIONS | frozenset(
    "version schema_version source task metadata environment agent verifier solution steps "
    "multi_step_reward_strategy artifacts".split()
)
AGENT_KEYS = NETWORK_KEYS | {"timeout_sec", "user"}
VERIFIER_KEYS = NETWORK_KEYS | frozenset(
    "timeout_sec env user environment_mode environment collect".split()
)
STEP_KEYS = frozenset(
    "name agent verifier min_reward healthcheck artifacts dependencies "
    "inherit_prior_session".split()
)
"""The last two ask for one conversation in the order of the file, which all tasks have here."""
STEP_VERIFIER_KEYS = frozenset("timeout_sec env user".split())
HEALTH_KEYS = frozenset(
    "command interval_sec timeout_sec start_period_sec start_interval_sec retries".split()
)
MCP_KEYS = frozenset("name transport url command args".split())
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
    tests_place = None
    has_tests = True
    if is_separate:
        tests_place, is_bundled = _tests_place(path, settings, verifier)
        has_tests = not is_bundled
    compose = read_compose(path, path / "environment")
    refuse(
        path,
        {
            "another build of its main service": compose.build != ".",
            "a step's own image for tests": (
                is_separate and any(path.glob("steps/*/tests/[Dd]ocker*"))
            ),
            "services beside tests in a copy of its container": (
                bool(compose.services) and is_separate and has_tests
            ),
        },
    )
    return TaskFolder(
        path=path,
        place=_with(compose, _place(path, path / "environment", environment, is_public)),
        services=compose.services,
        healthcheck=_healthcheck(path, table(environment, "healthcheck")),
        tests_place=tests_place,
        test_command="/tests/test.sh",
        rewards=True,
        steps=_steps(path, settings, has_tests),
        final=_is_final(settings.get("multi_step_reward_strategy", "mean")),
        solution_env=variables(path, table(solution, "env")),
    )


def _with(compose: Compose, place: SandboxSpec) -> SandboxSpec:
    env = {**compose.env, **place.env}
    folder = place.folder or compose.folder
    return replace(place, env=env, folder=folder, **compose.limits)


def _steps(path: Path, settings: Mapping[str, Any], has_tests: bool) -> Sequence[Step]:
    """The steps of the task, or the task as one step."""
    listed = settings.get("steps") or [{}]
    names = [str(step.get("name", "")) for step in listed]
    if len({*names}) < len(names):
        raise ValueError(f"the steps {names} need a name each")
    steps = []
    for name, step in zip(names, listed, strict=True):
        _refuse_unknown(path, step, STEP_KEYS)
        _refuse_unknown(path, table(step, "agent"), AGENT_KEYS - NETWORK_KEYS)
        _refuse_unknown(path, table(step, "verifier"), STEP_VERIFIER_KEYS)
        steps.append(_step(path, settings, step, name, has_tests))
    return steps


def _step(
    path: Path, settings: Mapping[str, Any], step: Mapping[str, Any], name: str, has_tests: bool
) -> Step:
    """Values of the step go before those of the task."""
    agent = {**table(settings, "agent"), **table(step, "agent")}
    own_verifier = table(step, "verifier")
    verifier = {**table(settings, "verifier"), **own_verifier}
    env = {**table(table(settings, "verifier"), "env"), **table(own_verifier, "env")}
    folder = path / "steps" / name if name else path
    if name and folder.resolve() != path.resolve() / "steps" / name:
        raise ValueError(f"the name of a step is {name!r}, not that of a folder in steps")
    _check_folders(path, folder)
    places = {path / "tests": None, folder / "tests": None}
    smallest = step.get("min_reward") or {}
    if not isinstance(smallest, dict):
        smallest = {"reward": smallest}
    return Step(
        name=name,
        instruction=instruction_of(path, (folder / "instruction.md").read_text("utf-8-sig"))
        + _mcp_servers(path, table(settings, "environment").get("mcp_servers") or ()),
        user=matching(USER, "user", agent.get("user", "")),
        agent_s=seconds(agent, "timeout_sec", 600),
        tests_s=seconds(verifier, "timeout_sec", 600),
        tests=[("/tests", place) for place in places if place.is_dir()] if has_tests else (),
        tests_env=variables(path, env),
        tests_user=matching(USER, "user", verifier.get("user", "")),
        artifacts=_artifacts(path, [*_list(settings), *_list(step)]),
        files=folder / "workdir" if name and (folder / "workdir").is_dir() else None,
        healthcheck=_healthcheck(path, table(step, "healthcheck")),
        smallest_rewards={reward: float(value) for reward, value in smallest.items()},
        solution=folder / "solution" if (folder / "solution" / "solve.sh").is_file() else None,
    )


def _is_final(strategy: str) -> bool:
    if strategy not in ("mean", "final"):
        raise ValueError(f"multi_step_reward_strategy is {strategy!r}, not mean or final")
    return strategy == "final"


def _healthcheck(path: Path, settings: Mapping[str, Any]) -> Healthcheck | None:
    if not settings:
        return None
    _refuse_unknown(path, settings, HEALTH_KEYS)
    times = {
        f"{name}_s": float(settings[f"{name}_sec"])
        for name in ("interval", "timeout", "start_period", "start_interval")
        if f"{name}_sec" in settings
    }
    return Healthcheck(
        command=str(settings["command"]), retries=int(settings.get("retries", 3)), **times
    )


def _mcp_servers(path: Path, servers: Sequence[Mapping[str, Any]]) -> str:
    """Words on the task's MCP servers, which the policy reaches by its commands, as in Harbor's own
    agent Terminus.
    """
    if not servers:
        return ""
    lines = ["", "", "MCP Servers:", "The following MCP servers are available for this task."]
    for server in servers:
        _refuse_unknown(path, server, MCP_KEYS)
        transport = server.get("transport", "sse")
        if transport == "stdio":
            words = " ".join([str(server["command"]), *map(str, server.get("args", ()))])
            lines.append(f"- {server['name']}: stdio transport, command: {words}")
        else:
            lines.append(f"- {server['name']}: {transport} transport, url: {server['url']}")
    return "\n".join(lines) + "\n"


def _check_folders(path: Path, step: Path) -> None:
    """Raises JobFailure for a folder that is a link out of the task, and without tests."""
    own = (step / name for name in ("tests", "solution", "workdir"))
    for place in (path / "environment", path / "tests", *own):
        if not place.resolve().is_relative_to(path.resolve()):
            raise JobFailure(
                f"the task {path.name} has its folder {place.name} elsewhere, by a link"
            )
    if not any((place / "tests" / "test.sh").is_file() for place in (path, step)):
        raise JobFailure(f"the task {path.name} has no tests/test.sh")


def _refuse_unknown(path: Path, settings: Mapping[str, Any], known_keys: Set[str]) -> None:
    refuse(path, {f"the key {key!r}": True for key in sorted(set(settings) - known_keys)})


def _tests_place(
    path: Path, settings: Mapping[str, Any], verifier: Mapping[str, Any]
) -> tuple[SandboxSpec, bool]:
    """The container of the tests, and true if its image comes with them."""
    own = table(verifier, "environment")
    agents = table(settings, "environment")
    environment = own or agents
    network = _mode(verifier, _mode(environment)) == PUBLIC
    is_bundled = any((path / "tests" / name).is_file() for name in (DOCKERFILE, *COMPOSE))
    image = own.get("docker_image") or ("" if is_bundled else agents.get("docker_image"))
    folder = path / ("tests" if is_bundled else "environment")
    return _place(path, folder, {**environment, "docker_image": image}, network), is_bundled


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


def _place(path: Path, folder: Path, settings: Mapping[str, Any], network: bool) -> SandboxSpec:
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
            "skills": bool(settings.get("skills_dir")),
            "an allowlist of hosts": bool(settings.get("allowed_hosts")),
            "docker compose for its tests": (
                folder.name == "tests" and any((folder / name).exists() for name in COMPOSE)
            ),
        },
    )
    if not image and not (folder / DOCKERFILE).is_file():
        raise JobFailure(
            f"the task {path.name} has neither {folder.name}/{DOCKERFILE} nor a docker_image"
        )
    workdir = settings.get("workdir")
    if workdir is not None and not str(workdir).startswith("/"):
        raise ValueError(f"workdir is {workdir!r}, not a path from the root")
    return SandboxSpec(
        dockerfile=None if image else folder,
        image=image or f"rollq-task:{digest(folder)}",
        build_s=seconds(settings, "build_timeout_sec", 600),
        cpus=cpus(settings),
        memory=_memory(settings),
        env=variables(path, table(settings, "env")),
        folder=workdir,
        network=network,
    )


def _list(settings: Mapping[str, Any]) -> list[Any]:
    listed = settings.get("artifacts", [])
    if not isinstance(listed, list):
        raise TypeError("artifacts is not a list of paths")
    return listed


def _artifacts(path: Path, listed: Sequence[Any]) -> tuple[str, ...]:
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
    return memory_of(text, MB)
