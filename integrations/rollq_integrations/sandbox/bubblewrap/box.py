"""A sandbox for commands of the policy, by bubblewrap: a scratch folder in memory, and nothing of
the worker's.

    with Bubblewrap() as sandbox:
        print(sandbox.run([PYTHON, "-c", "print(2)"]).output)

Inside there are the system's programs and this interpreter's own library, read-only, and an empty
folder WORK. There is no network, no file of the worker's (its home, its virtual environment, its
keys) and no variable of its environment. All of it ends with the worker. `shell` runs inside. What
is not confined: the CPU time that commands take beside each other, and memory of the kernel's for
pipes, sockets, locks and mappings. It does not know tools.
"""

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from rollq.env import CommandResult, Json, SandboxSpec
from rollq.errors import EnvironmentFailure, JobFailure
from rollq_integrations.sandbox.arguments import refuse_arguments
from rollq_integrations.sandbox.bubblewrap.system_calls import system_call_filter

WORK = "/work"
"""The scratch folder inside: where commands begin, and their home."""
OWN_PYTHON = Path(os.path.realpath(sys.executable))
"""The worker's interpreter outside, without its virtual environment."""
PYTHON_FOLDER = sys.base_prefix if sys.base_prefix.startswith("/usr") else "/opt/python"
"""Folder of the interpreter inside. It may come from a home folder, which commands must not enter.
"""
LIBRARY_FOLDER = "/opt/libpython"
"""Folder of its own library inside, which holds nothing else."""
PYTHON = f"{PYTHON_FOLDER}/{OWN_PYTHON.relative_to(os.path.realpath(sys.base_prefix))}"
"""The interpreter inside."""
FIRST_USER = 2_000_000_000
"""The sandboxes of a worker that is root have users of their own from here on, so that each has its
own count of processes.
"""
FIRST_TO_GO = 'echo 1000 > /proc/self/oom_score_adj && exec "$@"'
"""Has the kernel end a sandbox before its worker where memory runs out. Inside, /proc cannot be
written.
"""
START_S = 30.0
"""Longest start of a sandbox in seconds."""
GRACE_S = 15.0
"""Seconds beyond a command's time in which the sandbox must answer."""
INSTALL = (
    "install bubblewrap (apt-get install bubblewrap), and allow user namespaces to unprivileged "
    "users"
)
STOPPED = {
    "": "",
    "time": "it ran longer than {seconds:g} s",
    "memory": "it used more than {megabytes} MB of memory",
    "output": "it wrote more than 1 MB",
    "files": "the sandbox held more than 50,000 files, and all of them were removed",
}


@dataclass(frozen=True)
class Limits:
    """Limits of commands."""

    seconds: float = 10.0
    """Longest time of one command, by the clock."""
    memory: int = 512 << 20
    """Bytes: address space of each process, and memory of all processes together."""
    disk: int = 64 << 20
    """Bytes of each of the scratch folder, /tmp and /dev/shm, which lie in memory."""
    processes: int = 64


DEFAULT = Limits()


class Bubblewrap:
    """Implements rollq.env.Sandbox: a scratch folder, and commands that share it. Not for several
    threads at once.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        """Raises JobFailure where the system has no sandbox, and EnvironmentFailure when it does
        not start.
        """
        check_system()
        self._limits = limits
        self._open()

    def _open(self) -> None:
        self._process = _start(self._limits)
        try:
            _answer(self._process, START_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Bubblewrap":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> CommandResult:
        """Runs a command. All its processes end with it. Raises JobFailure for another `user`."""
        if user:
            raise JobFailure(f"bubblewrap has one user, not {user!r}: take a container")
        # half of a character pair has no bytes
        argv = [part.encode(errors="replace").decode() for part in command]
        argv = argv or [""]  # no program has that name
        refusal = refuse_arguments(argv)
        if refusal:
            return refusal
        longest = self._limits.seconds if seconds is None else seconds
        reply, output = self._ask(
            {"argv": argv, "seconds": longest, "env": dict(env or {})}, seconds=longest
        )
        if reply["stopped"] == "files":
            self.close()  # so that commands cannot go on to add some in each of their last moments
            self._open()
        why = STOPPED[reply["stopped"]].format(seconds=longest, megabytes=self._limits.memory >> 20)
        return CommandResult(output.decode(errors="replace"), reply["code"], why)

    def end_processes(self) -> None:
        """Does nothing: a command's processes end with it."""

    def upload(self, source: Path, target: str) -> None:
        source.stat()  # raises FileNotFoundError where there is none
        for file in [source, *source.rglob("*")]:
            to = os.path.normpath(os.path.join(WORK, target, file.relative_to(source)))
            if file.is_dir() and not file.is_symlink():
                self._check(self._ask({"folder": to})[0])
            elif file.is_file():
                content = file.read_bytes()
                head = {"write": to, "mode": file.stat().st_mode & 0o777, "size": len(content)}
                self._check(self._ask(head, content)[0])

    def download(self, path: str) -> bytes:
        reply, content = self._ask({"read": path})
        if reply.get("missing"):
            raise FileNotFoundError(path)
        self._check(reply)
        return content

    def _check(self, reply: Mapping[str, Any]) -> None:
        if "error" in reply:
            raise EnvironmentFailure(f"the sandbox: {reply['error']}")

    def _ask(
        self, request: Json, content: bytes = b"", *, seconds: float = 0.0
    ) -> tuple[dict[str, Any], bytes]:
        """The reply of the shell to a request that may take so long. Without one the sandbox ends:
        a reply that comes late would be that of the next request.
        """
        sent = json.dumps(request).encode() + b"\n" + content
        try:
            self._send(sent)
            return _answer(self._process, seconds + GRACE_S)
        except BaseException:
            self.close()
            raise

    def _send(self, request: bytes) -> None:
        assert self._process.stdin is not None, "it has pipes"
        try:
            left = memoryview(request)
            while left:
                left = left[self._process.stdin.write(left) :]
        except (OSError, ValueError) as e:  # ValueError: it was closed
            raise EnvironmentFailure("the sandbox has ended") from e

    def close(self) -> None:
        """Ends all of its processes; the kernel removes the scratch folder."""
        if self._process.poll() is None:  # else another process may have its number
            with suppress(ProcessLookupError):
                # bwrap, and the first process of the PID namespace
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def of_spec(spec: SandboxSpec) -> Bubblewrap:
    """Implements rollq.env.SandboxMaker. CPUs are not confined."""
    simple = SandboxSpec(seconds=spec.seconds, cpus=spec.cpus, memory=spec.memory)
    if spec != simple:
        wishes = [
            field.name
            for field in fields(spec)
            if getattr(spec, field.name) != getattr(simple, field.name)
        ]
        raise JobFailure(f"bubblewrap cannot give a sandbox its {', '.join(wishes)}")
    return Bubblewrap(Limits(seconds=spec.seconds, memory=spec.memory))


@cache
def check_system() -> None:
    """Raises JobFailure where commands could not be confined."""
    if sys.platform != "linux":
        raise JobFailure(f"sandboxed commands need Linux and bubblewrap, not {sys.platform}")
    if shutil.which("bwrap") is None:
        raise JobFailure(
            f"sandboxed commands need bwrap on PATH, and nothing runs without it: {INSTALL}"
        )
    process = _start(Limits())
    try:
        _answer(process, START_S)
    except EnvironmentFailure as e:
        raise JobFailure(f"bwrap cannot confine commands on this system: {e}; {INSTALL}") from e
    finally:
        process.kill()
        process.communicate()


def _start(limits: Limits) -> "subprocess.Popen[bytes]":
    root = os.geteuid() == 0
    user = FIRST_USER + secrets.randbelow(100_000_000) if root else 0
    shell = _readable(Path(__file__).with_name("shell.py").read_bytes())
    refused = _readable(system_call_filter())
    confined = [
        *("/bin/sh", "-c", FIRST_TO_GO, "sh"),
        str(shutil.which("bwrap")),
        *_walls(limits, root),
        "--seccomp",
        str(refused),
        "--",
    ]
    inside = [
        PYTHON,
        "-I",
        "-S",
        "-c",
        f"exec(open({shell}).read())",
        json.dumps(asdict(limits)),
        str(user),
    ]
    try:
        return subprocess.Popen(
            [*confined, *inside],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # until it is ready, that is what went wrong
            bufsize=0,
            env={},
            pass_fds=(shell, refused),
            start_new_session=True,  # no terminal, and a process group that can be killed
        )
    finally:
        os.close(shell)
        os.close(refused)


def _readable(content: bytes) -> int:
    """The descriptor of a file in memory. A pipe could be too small: a user with many pipes gets
    only such.
    """
    file = os.memfd_create("rollq")
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _walls(limits: Limits, root: bool) -> Iterator[str]:
    """The arguments of bwrap. A worker that is root needs no user namespace, and without one its
    sandboxes can have users of their own; all capabilities go when the shell takes on that user.
    """
    for space in ("ipc", "pid", "net", "uts", "cgroup-try"):
        yield f"--unshare-{space}"
    if root:
        yield from ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    else:
        yield "--unshare-user"
    yield from ("--as-pid-1", "--hostname", "sandbox", "--ro-bind", "/usr", "/usr")
    yield from _programs()
    for folder in ("/etc", "/opt"):
        yield from ("--perms", "0755", "--dir", folder)
    for file in ("/etc/ld.so.cache", "/etc/alternatives"):
        yield from ("--ro-bind-try", file, file)
    if sys.base_prefix != PYTHON_FOLDER:
        yield from _interpreter()
    yield from ("--proc", "/proc", "--dev", "/dev")
    # it reads as zeros, too, and cannot be mapped as memory
    yield from ("--dev-bind", "/dev/full", "/dev/zero")
    for folder in ("/dev/shm", "/tmp", WORK):
        yield from ("--perms", "1777", "--size", str(limits.disk), "--tmpfs", folder)
    for folder in ("/dev", "/proc", "/"):
        yield from ("--remount-ro", folder)
    yield from ("--chdir", WORK)
    for name, value in (
        ("PATH", f"{os.path.dirname(PYTHON)}:/usr/bin:/bin"),
        ("HOME", WORK),
        ("LANG", "C.UTF-8"),
        ("TZ", "UTC"),
        ("PYTHONHASHSEED", "0"),  # the order of sets is the same when the episode is played again
    ):
        yield from ("--setenv", name, value)


def _programs() -> Iterator[str]:
    """The arguments of bwrap for the folders of the system's programs."""
    for folder in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        elif os.path.isdir(folder):
            yield from ("--ro-bind", folder, folder)


def _interpreter() -> Iterator[str]:
    """The arguments of bwrap for an interpreter that does not lie in /usr."""
    yield from ("--ro-bind", sys.base_prefix, PYTHON_FOLDER)
    # It may name its libpython by the path outside. The rest of that folder is not for the system's
    # programs.
    library = sysconfig.get_config_var("INSTSONAME")
    yield from ("--perms", "0755", "--dir", LIBRARY_FOLDER)
    source = f"{sys.base_prefix}/lib/{library}"
    yield from ("--ro-bind-try", source, f"{LIBRARY_FOLDER}/{library}")
    yield from ("--setenv", "LD_LIBRARY_PATH", LIBRARY_FOLDER)


def _answer(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[dict[str, Any], bytes]:
    """A reply of the shell, and the output that follows it. Raises EnvironmentFailure."""
    assert process.stdout is not None, "it has pipes"
    deadline = time.monotonic() + seconds
    reply: dict[str, Any] | None = None
    got = bytearray()
    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(process.stdout, select.POLLIN)
    while True:
        if reply is None and b"\n" in got:
            head, _, rest = bytes(got).partition(b"\n")
            reply = _reply_in(head)
            if reply is not None:
                got = bytearray(rest)
        if reply is not None and len(got) >= reply["size"]:
            return reply, bytes(got)
        left_s = max(0.0, deadline - time.monotonic())
        if not poller.poll(left_s * 1000):
            raise EnvironmentFailure(f"the sandbox did not answer for {seconds:g} s")
        part = process.stdout.read(65536)
        if not part:
            message = got.decode(errors="replace").strip()
            last_words = message[-1000:] or "it said nothing"
            raise EnvironmentFailure(f"the sandbox has ended: {last_words}")
        got += part


def _reply_in(line: bytes) -> dict[str, Any] | None:
    """The reply in a line; None for words of bwrap or the interpreter before they fail."""
    try:
        reply = json.loads(line)
    except ValueError:
        return None
    if isinstance(reply, dict) and "size" in reply:
        return reply
    return None
