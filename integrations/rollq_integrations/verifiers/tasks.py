"""Tasks of verifiers, and a check that they can be played. Anything that an episode of rollq does
not have is refused here, by name.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from rollq.env import Json
from rollq.errors import JobFailure
from rollq_integrations.verifiers.package import package, part


def playable_tasks(name: str, config: Mapping[str, Json]) -> list[Any]:
    """The taskset's tasks. Raises JobFailure when it, or one of them, cannot be played."""
    vf = package()
    try:
        kind = vf.taskset_config_type(name)
        found = vf.load_taskset(kind.model_validate({"id": name, **config}))
        env = vf.environment_class(name)
        harness = vf.default_harness_id(name)
        tasks = list(found) if found.bounded else []
    except Exception as e:  # other people's code
        raise JobFailure(f"the taskset {name!r} cannot be loaded: {type(e).__name__}: {e}") from e
    if env is not vf.SingleAgentEnv:
        raise JobFailure(
            f"the taskset {name!r} comes with an environment of its own, {env.__name__}, "
            "and cannot be played"
        )
    if harness == name:
        raise JobFailure(
            f"the taskset {name!r} comes with a harness of its own, and cannot be played without it"
        )
    if not found.bounded:
        raise JobFailure(f"the taskset {name!r} has no end; bound it in its configuration")
    if type(found).toolsets(found.config):
        raise JobFailure(
            f"the taskset {name!r} has tool servers that its tasks share; only toolsets "
            "of tasks are played"
        )
    for task in tasks:
        if needed := _needs(task):
            raise JobFailure(
                f"task {task.data.idx} of the taskset {name!r} needs {needed}, which "
                "rollq does not give it"
            )
    if not tasks:
        raise JobFailure(f"the taskset {name!r} has no tasks")
    return tasks


def _needs(task: Any) -> str:
    """The need of the task that an episode does not have; "" for one that can be played."""
    data = task.data
    if task.NEEDS_CONTAINER or data.image:
        return "a container"
    for name in ("agent_user", "workdir", "skills", "artifacts"):
        if getattr(data, name):
            return f"its {name}"
    if part("utils.decorators", "discover_decorated")(task, "intercept"):
        return "functions that intercept requests"
    needed = _needs_of_functions(task) or _needs_of_toolsets(task)
    if needed:
        return needed
    try:
        prompt_of(data)
    except JobFailure as e:
        return str(e)
    return ""


def _needs_of_functions(task: Any) -> str:
    """The need of its hooks and stop conditions."""
    vf = package()
    hooks = [
        *task.hooks("metric"),
        *task.hooks("reward"),
        *(judge.score for judge in task.plugged_judges()),
    ]
    for function in (task.setup, task.finalize, *hooks):
        parameter = inspect.signature(function).parameters.get("runtime")
        own = getattr(function, "__func__", function) not in (vf.Task.setup, vf.Task.finalize)
        if own and parameter is not None and parameter.default is inspect.Parameter.empty:
            return f"a runtime, for {function.__name__}"
    for function in task.hooks("stop"):
        if part("session", "hook_boundary")(function, allow_trace=True) is not vf.Trace:
            return f"requests and responses, for the stop condition {function.__name__}"
    return ""


def _needs_of_toolsets(task: Any) -> str:
    for toolset in type(task).toolsets(task.config):
        placed = toolset.config
        runs_elsewhere = (
            getattr(placed, "url", None)
            or getattr(placed, "colocated", False)
            or placed.runtime.type != "subprocess"
        )
        if runs_elsewhere:
            return f"the toolset {type(toolset).__name__} to run elsewhere"
    return ""


def prompt_of(data: Any) -> tuple[str, str]:
    """System prompt and question. Raises JobFailure."""
    system = data.system_prompt or ""
    found = data.prompt
    if isinstance(found, list):
        if [message.role for message in found] not in (["user"], ["system", "user"]):
            raise JobFailure(
                "a prompt of other messages than one of the user's, perhaps behind a system message"
            )
        if len(found) > 1:
            system = "\n\n".join(part for part in (system, found[0].content) if part)
        found = found[-1].content
    if not isinstance(found, str) or not isinstance(system, str) or not found.strip():
        raise JobFailure("a prompt that is not a text")
    return system, found
