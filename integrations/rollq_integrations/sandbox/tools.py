"""Tools that run the policy's commands in a sandbox: `bash` and `python`.

    load = dataset("tasks.jsonl", reward="number", tools=commands("python"))

The commands of an episode share one scratch folder, which ends with it. An exit code, a limit that stops a command and
a program that is missing are observations. It does not know how a sandbox is made.
"""

from collections.abc import Callable, Mapping, Sequence

from rollq.env import Action, Json, Tools
from rollq.errors import JobFailure
from rollq_integrations.sandbox.box import DEFAULT, PYTHON, Limits, Sandbox, check_system

TOOLS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "bash": (
        ("/bin/bash", "-c"),
        "command",
        "Runs a command in bash and returns what it writes.",
    ),
    "python": (
        (PYTHON, "-c"),
        "code",
        "Runs a Python program and returns what it prints.",
    ),
}
"""For each tool, what it runs, the name of its argument, and what it does."""


def commands(*names: str, limits: Limits = DEFAULT) -> Callable[[], Tools]:
    """Opens the tools of an episode: those of TOOLS that are named. Raises JobFailure for an unknown one, and where
    this system has no sandbox."""
    if not names or not set(names) <= set(TOOLS):
        raise JobFailure(f"commands() takes the names of tools, {' and '.join(TOOLS)}, not {names!r}")
    check_system()
    return lambda: CommandTools(names, limits)


class CommandTools:
    """Implements Tools."""

    def __init__(self, names: tuple[str, ...], limits: Limits) -> None:
        self.schemas: Sequence[Json] = [_schema(name) for name in names]
        self._names = names
        self._sandbox = Sandbox(limits)

    def call(self, action: Action) -> str:
        if action.name not in self._names:
            return f"Error: there is no tool {action.name!r}"
        start, argument, _ = TOOLS[action.name]
        text = action.arguments.get(argument)
        if not isinstance(text, str) or len(action.arguments) > 1:
            return f"Error: {action.name} takes one argument, {argument}, which is a text"
        result = self._sandbox.run([*start, text])
        if result.stopped:
            return f"{result.output}\n[stopped: {self._sandbox.why_stopped(result)}]".lstrip("\n")
        if result.code:
            return f"{result.output}\n[exit code {result.code}]".lstrip("\n")
        return result.output

    def close(self) -> None:
        self._sandbox.close()


def _schema(name: str) -> Json:
    _, argument, says = TOOLS[name]
    says += " Files that it writes in its folder stay until the end; its processes do not."
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": says, "parameters": parameters},
    }
