"""A sandbox: where an episode's commands run, apart from the worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Output and end of a command."""

    output: str
    """Stdout and stderr in the order in which they were written, at most 32 KiB."""
    code: int
    """The exit code; negative for a signal, or 128 more where a shell of a container tells it."""
    stopped: str = ""
    """Why the sandbox stopped it, in words for the policy; "" when it ended by itself."""


class Sandbox(Protocol):
    """A sandbox of one episode. Making one starts it. It ends with `close`, and with its worker,
    also one that is killed. Every method raises EnvironmentFailure when the sandbox itself fails.
    """

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a command: the path of a program inside, and its arguments. `seconds` is its longest
        time, in place of the sandbox's own. `env` is added to its environment.
        """
        ...

    def upload(self, source: Path, target: str) -> None:
        """Put a file of this machine, or a folder with all that is in it, at the absolute path
        `target` inside. Missing folders are made.
        """
        ...

    def download(self, path: str) -> bytes:
        """The content of the file at that path inside, at most 16 MB. Raises FileNotFoundError when
        there is no such file.
        """
        ...

    def close(self) -> None:
        """End it, with all of its processes and files."""
        ...
