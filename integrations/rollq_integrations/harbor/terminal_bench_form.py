"""Reads a task's folder in the form of terminal-bench, with the service of its compose file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollq.env import Json
from rollq.errors import JobFailure
from rollq.pip_extras import install_line
from rollq_integrations.harbor.task_folder import (
    COMPOSE,
    DOCKERFILE,
    Place,
    TaskFolder,
    digest,
    instruction_of,
    refuse,
    seconds,
    table,
    variables,
)

TERMINAL_BENCH = "task.yaml"


def read(path: Path) -> TaskFolder:
    """The task of that folder. Raises JobFailure for a task that is not played here, and other
    errors for one that is not in this form.
    """
    settings = _yaml(path / TERMINAL_BENCH)
    parser = settings.get("parser_name") or "pytest"
    refuse(
        path,
        {
            "several descriptions": "descriptions" in settings,
            f"the parser {parser!r}": parser != "pytest",
            "tests in the agent's shell": bool(settings.get("run_tests_in_same_shell")),
        },
    )
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
        instruction=instruction_of(path, str(settings["instruction"])),
        place=Place(
            dockerfile=context,
            image=f"rollq-task:{digest(context)}",
            env=service["environment"],
            folder=service.get("working_dir"),
        ),
        agent_s=seconds(settings, "max_agent_timeout_sec", 360),
        tests_s=seconds(settings, "max_test_timeout_sec", 60),
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
    services = table(_yaml(file), "services") if file else {"client": {}}
    refuse(path, {"several containers": len(services) != 1})
    [service] = (table(services, name) for name in services)
    build = service.get("build", ".")
    if not isinstance(build, dict):
        build = {"context": build}
    has_arguments = bool({*build} - {"context", "dockerfile"})
    volumes = service.get("volumes", ())
    requests = {f"{name!r} of docker compose": True for name in sorted({*service} - _PLAYED_KEYS)}
    requests["a build with arguments"] = (
        has_arguments or build.get("dockerfile", DOCKERFILE) != DOCKERFILE
    )
    requests["an image without a build"] = "image" in service and "build" not in service
    requests["a command that does more than wait"] = not _waits(service.get("command"))
    requests["volumes"] = not all(_KNOWN_VOLUME.search(str(volume)) for volume in volumes)
    refuse(path, requests)
    environment = variables(path, _environment(service))
    return {**service, "build": build.get("context", "."), "environment": environment}


_PLAYED_KEYS = frozenset(
    "build image container_name command volumes environment working_dir expose".split()
)
"""Keys of a service that are carried out, or change nothing here."""
_KNOWN_VOLUME = re.compile(r"T_BENCH|^\./tests/?:/tests/?(:r[ow])?$")
"""Volumes of terminal-bench's own harness, and the tests, which are uploaded before they run."""
_SHELL = r"(?:/(?:usr/)?bin/)?(?:ba)?sh"
_WAITING = re.compile(rf"(?:{_SHELL} -c )?(['\"]?)(?:sleep \w+|tail -f /dev/null|{_SHELL})\1")
"""Commands that only keep a container up."""


def _waits(command: Any) -> bool:
    """True if containers here, which stay up by themselves, do the same without the command."""
    if command is None:
        return True
    words = command if isinstance(command, list) else [command]
    return bool(_WAITING.fullmatch(" ".join(map(str, words))))


def _environment(service: Mapping[str, Any]) -> dict[str, Json]:
    """The service's variables, but for those of terminal-bench's own harness."""
    listed = service.get("environment") or {}
    if isinstance(listed, list):
        pairs = [text.partition("=") for text in listed]
        listed = {name: value if equals else None for name, equals, value in pairs}
    own = {}
    for name, value in listed.items():
        if value is None:  # that of the machine, as `${NAME}`
            value = f"${{{name}}}"
        if "T_BENCH" not in str(value):
            own[name] = value
    return own


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
