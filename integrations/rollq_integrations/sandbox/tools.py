"""Tools that run the policy's commands in a sandbox: `bash` and `python`.

    load = dataset("tasks.jsonl", reward="number", tools=commands("python", sandbox=Bubblewrap))

The commands of an episode share one sandbox, which ends with it. An exit code, a limit that stops a
command and a program that is missing are observations. It does not know how a sandbox is made.
"""

from collections.abc import Callable, Mapping, Sequence

from rollq.env import Action, CommandResult, Json, Sandbox, Tools
from rollq.errors import JobFailure

TOOLS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "bash": (("/bin/bash", "-c"), "command", "Runs a command in bash and returns what it writes."),
    "python": (
        ("/usr/bin/env", "python3", "-c"),
        "code",
        "Runs a Python program and returns what it prints.",
    ),
}
"""Program of each tool, the name of its argument, and its description."""


def commands(*names: str, sandbox: Callable[[], Sandbox]) -> Callable[[], Tools]:
    """Opens the tools of an episode: those of TOOLS that are named, in a sandbox of its own that
    `sandbox` makes, such as `Bubblewrap`. Raises JobFailure for an unknown name.
    """
    if not names or not set(names) <= set(TOOLS):
        raise JobFailure(
            f"commands() takes the names of tools, {' and '.join(TOOLS)}, not {names!r}"
        )
    return lambda: CommandTools(names, sandbox())


class CommandTools:
    """Implements Tools."""

    def __init__(self, names: tuple[str, ...], sandbox: Sandbox) -> None:
        self.schemas: Sequence[Json] = [_schema(name) for name in names]
        self._names = names
        self._sandbox = sandbox

    def call(self, action: Action) -> str:
        if action.name not in self._names:
            return f"Error: there is no tool {action.name!r:.80}"
        start, argument, _ = TOOLS[action.name]
        text = action.arguments.get(argument)
        if not isinstance(text, str) or len(action.arguments) > 1:
            return f"Error: {action.name} takes one argument, {argument}, which is a text"
        return as_told(self._sandbox.run([*start, text]))

    def close(self) -> None:
        self._sandbox.close()


def as_told(result: CommandResult) -> str:
    """Report of a command's end for the policy."""
    if result.stopped:
        end = f"stopped: {result.stopped}"
    else:
        end = f"exit code {result.code}" if result.code else ""
    if end:
        return f"{result.output}\n[{end}]".lstrip("\n")
    return result.output


def _schema(name: str) -> Json:
    _, argument, says = TOOLS[name]
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    says += " Files that it writes in its folder stay until the end."
    return {
        "type": "function",
        "function": {"name": name, "description": says, "parameters": parameters},
    }
