"""Reads the compose file of a task: the agent's container, and services beside it.

All share one loopback, as in a pod, where each service has its name: two of them cannot listen at
one port. Ports are not published. What is not carried out is refused by its name.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from rollq.env import Json, SandboxSpec
from rollq.errors import JobFailure
from rollq.pip_extras import install_line
from rollq_integrations.harbor.task_folder import (
    COMPOSE,
    DOCKERFILE,
    IMAGE,
    Healthcheck,
    Service,
    cpus,
    digest,
    matching,
    memory_of,
    refuse,
    table,
    variables,
)

MAIN = ("main", "client")
"""Names of the agent's service, in Harbor's and terminal-bench's files."""
HARNESS = re.compile(
    r"T_BENCH|\$\{(MAIN_IMAGE_NAME|CPUS|MEMORY|NETWORK_MODE|TEST_DIR|(HOST|ENV)_\w+_PATH)"
)
"""Settings of the harness itself, which are carried out in another way here."""
FILE_KEYS = frozenset(("version", "name", "services", "networks", "volumes"))
KEYS = frozenset(
    "build image container_name command volumes networks environment working_dir expose ports "
    "depends_on deploy".split()
)
"""Keys of a service that are carried out, or change nothing here."""
DOLLAR = "\ue000"
"""Stands for `$$`, a dollar sign, while variables are filled in. No file has this character."""
STARTED = "service_started"
CONDITIONS = (STARTED, "service_healthy")
_KNOWN_VOLUME = re.compile(r"^\./tests/?:/tests/?(:r[ow])?$")
"""The tests, which are uploaded before they run."""
_SHELL = r"(?:/(?:usr/)?bin/)?(?:ba)?sh"
_WAITING = re.compile(rf"(?:{_SHELL} -c )?(['\"]?)(?:sleep \w+|tail -f /dev/null|{_SHELL})\1")
"""Commands that only keep a container up."""
_NAME = re.compile(r"[a-zA-Z0-9][\w.-]*")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?(?:(\d+)ms)?")


@dataclass(frozen=True, kw_only=True)
class Compose:
    """The agent's service, and those beside it."""

    build: str = "."
    """The folder with its Dockerfile."""
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    """CPUs and memory of the agent's service, where it bounds them, as fields of SandboxSpec."""
    services: Mapping[str, Service] = field(default_factory=dict)
    """Services by name, each after those on which it depends."""


def read_compose(path: Path, folder: Path) -> Compose:
    """The compose file in a folder of the task `path`, if there is one. Raises JobFailure for what
    is not carried out here, and other errors for a file that is none.
    """
    file = next((folder / name for name in COMPOSE if (folder / name).is_file()), None)
    if file is None:
        return Compose()
    settings = load_yaml(file)
    unknown = sorted(set(settings) - FILE_KEYS)
    refuse(path, {f"{key!r} of docker compose": True for key in unknown})
    services = {
        name: _without_harness(table(table(settings, "services"), name))
        for name in table(settings, "services")
    }
    _check_shared(path, settings, services)
    main = next((name for name in MAIN if name in services), None)
    if len(services) == 1:
        [main] = services
    refuse(path, {f"services without one named {' or '.join(MAIN)}": main is None})
    assert main is not None, "it was refused"
    agents = services[main]
    return Compose(
        build=_build(path, agents),
        **_agents(path, agents),
        services={
            name: _service(path, folder, name, services[name])
            for name in _order(path, services)
            if name != main
        },
    )


def _check_shared(
    path: Path, settings: Mapping[str, Any], services: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises JobFailure for networks and volumes that mean more than one loopback, and a disk for
    each service. One network of all and a volume of one service do not.
    """
    requests = {}
    for kind in ("networks", "volumes"):
        for name, own in table(settings, kind).items():
            is_plain = (own or {}) in ({}, {"driver": "bridge"}, {"driver": "local"})
            requests[f"settings of {kind} ({name!r})"] = not is_plain
    networks = {str(service.get("networks") or ["default"]) for service in services.values()}
    listed = [str(volume) for service in services.values() for volume in service.get("volumes", ())]
    for volume in listed:
        source = volume.partition(":")[0]
        uses = sum(other.partition(":")[0] == source for other in listed)
        is_own = source in table(settings, "volumes") and uses == 1
        requests[f"volumes ({volume})"] = not is_own and not _KNOWN_VOLUME.search(volume)
    refuse(path, {**requests, "several networks": len(networks) > 1})


def _agents(path: Path, service: Mapping[str, Any]) -> dict[str, Any]:
    """Variables, folder and limits of the agent's service, which runs no program of its own."""
    requests = {f"{name!r} of docker compose": True for name in sorted({*service} - KEYS)}
    requests["an image without a build"] = "image" in service and "build" not in service
    requests["a command that does more than wait"] = not _waits(service.get("command"))
    refuse(path, requests)
    return {
        "env": _environment(path, service),
        "folder": service.get("working_dir"),
        "limits": _limits(path, service),
    }


def _limits(path: Path, service: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of a service's `deploy`, as fields of SandboxSpec. What it reserves bounds
    nothing, and changes nothing here.
    """
    deploy = table(service, "deploy")
    resources = table(deploy, "resources")
    limits = table(resources, "limits")
    unknown = {*deploy} - {"resources"} | {*resources} - {"limits", "reservations"}
    unknown |= {*limits, *table(resources, "reservations")} - {"cpus", "memory"}
    refuse(path, {f"{name!r} of deploy": True for name in sorted(unknown)})
    own = {name: str(limit) for name, limit in limits.items() if not HARNESS.search(str(limit))}
    fields: dict[str, Any] = {}
    if "cpus" in own:
        fields["cpus"] = cpus({"cpus": _with_defaults(path, own["cpus"])})
    if "memory" in own:
        fields["memory"] = memory_of(_with_defaults(path, own["memory"]), 1)
    return fields


def _service(path: Path, folder: Path, name: str, service: Mapping[str, Any]) -> Service:
    matching(_NAME, "the name of a service", name)
    unknown = sorted({*service} - KEYS - {"healthcheck", "tmpfs"})
    refuse(path, {f"{key!r} of the service {name!r}": True for key in unknown})
    dockerfile = None
    image = _with_defaults(path, str(service.get("image", "")))
    if "build" in service:
        dockerfile = folder / _build(path, service)
        inside = dockerfile.resolve().is_relative_to(path.resolve())
        if not inside or not (dockerfile / DOCKERFILE).is_file():
            raise JobFailure(f"the task {path.name} has no Dockerfile for its service {name!r}")
        image = f"rollq-task:{digest(dockerfile)}"
    command = service.get("command") or ()
    words = shlex.split(command) if isinstance(command, str) else map(str, command)
    place = SandboxSpec(
        image=matching(IMAGE, f"the image of the service {name!r}", image),
        dockerfile=dockerfile,
        env=_environment(path, service),
        folder=service.get("working_dir"),
        command=tuple(_with_defaults(path, word) for word in words),
        **_limits(path, service),
    )
    return Service(place=place, healthcheck=_healthcheck(path, table(service, "healthcheck")))


def _build(path: Path, service: Mapping[str, Any]) -> str:
    build = service.get("build", ".")
    if not isinstance(build, dict):
        build = {"context": build}
    has_arguments = bool({*build} - {"context", "dockerfile"})
    is_other_file = build.get("dockerfile", DOCKERFILE) != DOCKERFILE
    refuse(path, {"a build with arguments": has_arguments or is_other_file})
    return str(Path(str(build.get("context", ".")).replace("${CONTEXT_DIR}", ".")))


def _order(path: Path, services: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """The names of the services, those on which others depend first."""
    needs = {name: service.get("depends_on") or {} for name, service in services.items()}
    conditions = [
        (settings or {}).get("condition", STARTED)
        for need in needs.values()
        if isinstance(need, dict)
        for settings in need.values()
    ]
    others = sorted({*conditions} - {*CONDITIONS})
    refuse(path, {f"the condition {other!r} of a service": True for other in others})
    missing = sorted({name for need in needs.values() for name in need} - {*services})
    refuse(path, {f"the service {name!r}, which it does not describe": True for name in missing})
    try:
        return [*TopologicalSorter(needs).static_order()]
    except CycleError as e:
        raise JobFailure(f"the task {path.name} has services that wait for each other") from e


def _healthcheck(path: Path, settings: Mapping[str, Any]) -> Healthcheck | None:
    """A health check in docker compose's sense: the first one comes after one interval."""
    test = settings.get("test", ["NONE"])
    if settings.get("disable") or test == ["NONE"]:
        return None
    kind, *words = test if isinstance(test, list) else ["CMD-SHELL", test]
    known = "test disable interval timeout start_period start_interval retries".split()
    requests = {f"{key!r} of a healthcheck": True for key in sorted({*settings} - {*known})}
    requests[f"a healthcheck by {kind!r}"] = kind not in ("CMD", "CMD-SHELL")
    refuse(path, requests)
    text = shlex.join(map(str, words)) if kind == "CMD" else " ".join(words)
    interval_s = _duration(settings.get("interval", "30s"))
    return Healthcheck(
        command=_with_defaults(path, text),
        interval_s=interval_s,
        timeout_s=_duration(settings.get("timeout", "30s")),
        start_period_s=_duration(settings.get("start_period", "0s")) + interval_s,
        start_interval_s=min(_duration(settings.get("start_interval", "5s")), interval_s),
        retries=int(settings.get("retries", 3)),
    )


def _duration(value: Any) -> float:
    """Seconds of a text such as `1m30s`."""
    parts = _DURATION.fullmatch(str(value))
    if parts is None or not any(parts.groups()):
        raise ValueError(f"a time is {value!r}, not as 1m30s")
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def _without_harness(service: Mapping[str, Any]) -> dict[str, Any]:
    """The service without settings of the harness itself."""
    kept = {}
    for key, value in service.items():
        if key == "volumes":
            value = [volume for volume in value or () if not HARNESS.search(str(volume))]
        if key in ("environment", "volumes", "deploy") or not HARNESS.search(str(value)):
            kept[key] = value
    return kept


def _waits(command: Any) -> bool:
    """True if containers here, which stay up by themselves, do the same without the command."""
    if command is None:
        return True
    words = command if isinstance(command, list) else [command]
    return bool(_WAITING.fullmatch(" ".join(map(str, words))))


def _environment(path: Path, service: Mapping[str, Any]) -> dict[str, str]:
    """The service's variables, but for those of the harness itself. `$$` is a dollar sign."""
    listed = service.get("environment") or {}
    if isinstance(listed, list):
        pairs = [text.partition("=") for text in listed]
        listed = {name: value if equals else None for name, equals, value in pairs}
    return {name: _with_defaults(path, value, name) for name, value in _own(listed)}


def _own(listed: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    for name, value in listed.items():
        if value is None:  # that of the machine, as `${NAME}`
            value = f"${{{name}}}"
        if not HARNESS.search(str(value)):
            yield name, value


def _with_defaults(path: Path, value: Json, name: str = "text") -> str:
    """The text of that name with the defaults of its variables. `$$` is a dollar sign."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return variables(path, {name: text.replace("$$", DOLLAR)})[name].replace(DOLLAR, "$")


def load_yaml(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as e:
        raise JobFailure(f"{file.name} needs the package pyyaml: {install_line('harbor')}") from e

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """As for docker compose, only `true` and `false` are booleans, and `12:30` is no number."""

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)
            is_other_word = tag.endswith(":bool") and value[0] not in "tTfF"
            is_time = tag.endswith((":int", ":float")) and ":" in value
            return self.DEFAULT_SCALAR_TAG if is_other_word or is_time else tag

    try:
        settings = yaml.load(file.read_text(), Loader)
    except yaml.YAMLError as e:
        raise JobFailure(f"{file}: {e}") from e
    if not isinstance(settings, dict):
        raise JobFailure(f"{file} is not a mapping")
    return settings
