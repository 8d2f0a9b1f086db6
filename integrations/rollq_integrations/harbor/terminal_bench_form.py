"""Reads a task's folder in the form of terminal-bench, with the services of its compose file."""

from pathlib import Path

from rollq.env import SandboxSpec
from rollq.errors import JobFailure
from rollq_integrations.harbor.compose import load_yaml, read_compose
from rollq_integrations.harbor.task_folder import (
    DOCKERFILE,
    Step,
    TaskFolder,
    digest,
    instruction_of,
    refuse,
    seconds,
)

TERMINAL_BENCH = "task.yaml"


def read(path: Path) -> TaskFolder:
    """The task of that folder. Raises JobFailure for a task that is not played here, and other
    errors for one that is not in this form.
    """
    settings = load_yaml(path / TERMINAL_BENCH)
    parser = settings.get("parser_name") or "pytest"
    refuse(
        path,
        {
            "several descriptions": "descriptions" in settings,
            f"the parser {parser!r}": parser != "pytest",
            "tests in the agent's shell": bool(settings.get("run_tests_in_same_shell")),
        },
    )
    compose = read_compose(path, path)
    context = path / compose.build
    if not context.resolve().is_relative_to(path.resolve()) or not (context / DOCKERFILE).is_file():
        raise JobFailure(f"the task {path.name} has no Dockerfile where it should be built")
    for name in ("tests", "run-tests.sh"):
        if not (path / name).exists():
            raise JobFailure(f"the task {path.name} has no {name}")
    script = path / "solution.sh"
    step = Step(
        instruction=instruction_of(path, str(settings["instruction"])),
        agent_s=seconds(settings, "max_agent_timeout_sec", 360),
        tests_s=seconds(settings, "max_test_timeout_sec", 60),
        tests=(("/tests", path / "tests"), ("/tests/run-tests.sh", path / "run-tests.sh")),
        solution=script if script.is_file() else None,
    )
    return TaskFolder(
        path=path,
        place=SandboxSpec(
            dockerfile=context,
            image=f"rollq-task:{digest(context)}",
            env=compose.env,
            folder=compose.folder,
            network=True,
            **compose.limits,
        ),
        services=compose.services,
        test_command="TEST_DIR=/tests bash /tests/run-tests.sh",
        rewards=False,
        steps=(step,),
    )
