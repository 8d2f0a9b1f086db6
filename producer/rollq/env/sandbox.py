"""A sandbox: where an episode's commands run, apart from the worker; and how a task wants it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """A sandbox as a task wants it."""

    image: str = ""
    """The image of a container; "" for the sandbox's own system."""
    dockerfile: Path | None = None
    """The folder with a Dockerfile, of which `image` is built; None where that is ready-made."""
    build_s: float = 600.0
    """Longest build in seconds."""
    seconds: float = 60.0
    """Longest time of a command that names none."""
    cpus: float = 1.0
    memory: int = 2 << 30
    """Bytes of all processes together."""
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    """Where commands begin, in place of the image's folder."""
    folders: Sequence[str] = ()
    """Folders that are made, for every user to write in."""
    network: bool = False
    """It may have a network, if the worker has one for it. Otherwise it has none."""
    names: Sequence[str] = ()
    """Names of services beside it, which lead to its loopback."""
    beside: "Sandbox | None" = None
    """The sandbox whose service it is: it shares its network, as in a pod, and runs the image's own
    command.
    """
    command: Sequence[str] = ()
    """The command of a service, in place of the image's."""


class Sandbox(Protocol):
    """A sandbox of one episode. It ends with `close`, and with its worker, also one that is killed.
    Every method raises EnvironmentFailure when the sandbox itself fails.
    """

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> CommandResult:
        """Run a command: the path of a program inside, and its arguments. `seconds` is its longest
        time, in place of the sandbox's own. `env` is added to its environment. `user` is who runs
        it, in place of the image's user.
        """
        ...

    def end_processes(self) -> None:
        """Kill all that commands have left running inside."""
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


class SandboxMaker(Protocol):
    """An entry point of the group `rollq.sandboxes`."""

    def __call__(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox, which starts. Raises JobFailure for a wish that it never fulfils, ServiceAway
        where its service does not answer, and EnvironmentFailure where the image or the start
        fails.
        """
        ...
