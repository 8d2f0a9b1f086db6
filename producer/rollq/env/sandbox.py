"""A sandbox: where an episode's commands run, apart from the worker; and how a task wants it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Output and end of a command."""

    output: str
    """Stdout and stderr in the order in which they were written: the first 32 KiB."""
    code: int
    """The exit code. For a signal it is the negative number, or 128 more where a shell of a
    container tells it.
    """
    stopped: str = ""
    """Why the sandbox stopped it, in words for the policy; "" when it ended by itself."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """A sandbox as a task wants it. A maker may refuse any of it, but `seconds` and `memory`, by a
    JobFailure.
    """

    image: str = ""
    """The image of a container; "" for the sandbox's own system."""
    dockerfile: Path | None = None
    """The folder with a Dockerfile, of which `image` is built where there is none of that name;
    None where it is ready-made.
    """
    build_s: float = 600.0
    """Longest build in seconds."""
    seconds: float = 60.0
    """Longest time of a command that names none."""
    cpus: float = 1.0
    """CPUs of all processes together. A maker may leave them unbounded."""
    memory: int = 2 << 30
    """Bytes of all processes together."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of all commands."""
    folder: str | None = None
    """Folder where commands begin, in place of the image's. It is one of the image's, or of
    `folders`.
    """
    folders: Sequence[str] = ()
    """Folders that are made, for every user to write in (mode 777)."""
    network: bool = False
    """A permission, which most of Harbor's tasks have: it may have a network, if the worker has one
    for it. Otherwise it reaches nothing beyond its host.
    """
    names: Sequence[str] = ()
    """Names of services beside it, which lead to its loopback."""
    beside: "Sandbox | None" = None
    """The sandbox whose service it is: it shares its network, as in a pod, and runs the image's own
    command. The command's output in /run/rollq/service, if there is one, is shown in failures.
    """
    command: Sequence[str] = ()
    """The command of a service, in place of the image's."""


class Sandbox(Protocol):
    """A sandbox of one episode. It ends with `close`, and with its worker, also one that is killed;
    the tests of makers allow three minutes. One call is made at a time, but `close` may come during
    another.

    Every method raises EnvironmentFailure when the sandbox itself fails. Acts of the policy are no
    such failure: its command may end the shell that runs it, or stop all processes
    (`kill -STOP -1`).
    """

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> CommandResult:
        """Runs a command: the path of a program inside (Harbor's tasks also give a name in PATH),
        and its arguments. Its stdin is empty. One that cannot run has a result, too, with a code
        such as 126.

        The call returns when the program ends. Processes that it has left may go on, or end with
        it. `seconds` is its longest time, in place of the sandbox's own: SIGKILL then ends it, and
        the result says so by `code` and `stopped`. `env` is added to its environment. `user` is who
        runs it, in place of the image's user; a sandbox with one user raises JobFailure.
        """
        ...

    def end_processes(self) -> None:
        """Kills all that commands have left running inside, if anything. Files stay."""
        ...

    def upload(self, source: Path, target: str) -> None:
        """Puts a file of this machine, or a folder with all that is in it, at the absolute path
        `target` inside, with the modes of the files. Missing folders are made, and files replaced.
        """
        ...

    def download(self, path: str) -> bytes:
        """The content of the file at that path inside, at most 16 MB. Raises FileNotFoundError when
        there is no such file, and EnvironmentFailure for a larger one, a folder or a pipe.
        """
        ...

    def close(self) -> None:
        """Ends it, with all of its processes and files, perhaps a little later. It may be called
        again. Other methods raise EnvironmentFailure from then on.
        """
        ...


class SandboxMaker(Protocol):
    """An entry point of the group `rollq.sandboxes`: a function from a spec to a sandbox, which
    starts. Raises JobFailure for a wish that it never fulfils; ServiceAway where its service does
    not answer, so that the worker gives its jobs back and waits; and EnvironmentFailure where the
    image or the start fails, perhaps only in a method of the sandbox.
    """

    def __call__(self, spec: SandboxSpec) -> Sandbox: ...
