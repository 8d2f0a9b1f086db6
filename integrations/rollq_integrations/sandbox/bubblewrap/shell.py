"""The first process of a sandbox: it starts the commands, one after the other, and bounds each.

It is given to a bare interpreter as a text, so it imports nothing of rollq. Requests come as lines
of JSON on stdin: a command (`argv`), or a file to `write`, whose bytes follow, or to `read`.
Replies go to stdout: a line of JSON, and then as many bytes of output as that says.

A command's processes all end with it. As the first process of its PID namespace it cannot be killed
from inside, and as it is not dumpable, other processes in the sandbox cannot look into it. It ends
with its worker, whose end of stdin then closes.
"""

import ctypes
import json
import os
import resource
import select
import signal
import stat
import sys
import time
from contextlib import suppress
from typing import Any

SHOWN = 32_768
"""Number of bytes of a command's output that are shown."""
LONGEST = 1 << 20
"""Number of bytes of output after which a command is stopped."""
LARGEST_FILE = 16_000_000
"""Number of bytes of a file that may be read out of the sandbox."""
FILES = 50_000
"""Number of files that a sandbox may hold; each takes memory of the kernel's."""
COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:", "VmPTE:")
"""The lines of a process's status that count as its memory; pages of programs and libraries are
everybody's.
"""
FOLDERS = ("/work", "/tmp", "/dev/shm")
"""The folders that take files."""
SIGNALS = 1024
"""Number of signals that wait and of timers, of the whole sandbox."""
PR_SET_DUMPABLE = 4


def main() -> None:
    """The arguments are the limits as JSON, and the user to become (0: none)."""
    limits = json.loads(sys.argv[1])
    user = int(sys.argv[2])
    if os.getpid() != 1:
        sys.exit("the shell of a sandbox must be the first process of its PID namespace")
    _bound(limits)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    _reply({"ready": True}, b"")
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if "argv" in request:
            _reply(*_run(request, {**limits, "seconds": request["seconds"]}))
        else:
            if "write" in request:
                content = sys.stdin.buffer.read(request["size"])
            else:
                content = b""
            try:
                _reply(
                    {}, _write(request, content) if "write" in request else _read(request["read"])
                )
            except (OSError, ValueError, MemoryError) as e:
                # ValueError: no file can have such a name
                _reply({"error": str(e), "missing": isinstance(e, FileNotFoundError)}, b"")


def _reply(reply: dict[str, Any], output: bytes) -> None:
    head = json.dumps({**reply, "size": len(output)})
    sys.stdout.buffer.write(head.encode() + b"\n" + output)
    sys.stdout.buffer.flush()


def _write(request: dict[str, Any], content: bytes) -> bytes:
    os.makedirs(os.path.dirname(request["write"]), exist_ok=True)
    with open(request["write"], "wb") as file:
        file.write(content)
    os.chmod(request["write"], request["mode"])
    return b""


def _read(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        # a pipe does not hold it up
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(f"{path} has more than {LARGEST_FILE} bytes")
    return content


def _bound(limits: dict[str, Any]) -> None:
    """The limits that the kernel keeps, for each process; the number of processes is that of the
    whole sandbox.
    """
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 128),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_SIGPENDING, SIGNALS),
    ):
        resource.setrlimit(kind, (value, value))


def _run(request: dict[str, Any], limits: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run one command to its end, or to the end of its time, memory or output."""
    read, write = os.pipe()
    try:
        pid = _start(request["argv"], {**os.environ, **request["env"]}, write)
    except (OSError, ValueError) as e:
        # ValueError: no process can have such a name or such variables
        os.close(read)
        message = f"{request['argv'][0]}: {e.strerror if isinstance(e, OSError) else e}"
        return {"code": 126, "stopped": ""}, message.encode()
    finally:
        os.close(write)
    ended = os.pidfd_open(pid)
    try:
        output, stopped = _watch(read, ended, limits)
    finally:
        status = _end_all(pid)
        os.close(ended)
    output += _rest(read)
    os.close(read)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "stopped": stopped}, output[:SHOWN]


def _start(argv: list[str], environment: dict[str, str], output: int) -> int:
    nothing = os.open("/dev/null", os.O_RDONLY)
    try:
        to = [
            (os.POSIX_SPAWN_DUP2, nothing, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ]
        # Python ignores SIGPIPE, and a command must not.
        return os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=to,
            setsid=True,
            setsigdef=[signal.SIGPIPE],
        )
    finally:
        os.close(nothing)


def _watch(read: int, ended: int, limits: dict[str, Any]) -> tuple[bytes, str]:
    """Read the output until the command ends. Returns it, and which limit stopped the command ("":
    none).
    """
    output = b""
    size = 0
    deadline = time.monotonic() + limits["seconds"]
    waiting = [ended, read]
    while True:
        ready, _, _ = select.select(waiting, [], [], 0.05)
        if read in ready:
            part = os.read(read, 65536)
            size += len(part)
            output = (output + part)[:SHOWN]
            if not part:
                waiting.remove(read)
        if ended in ready:
            return output, "files" if _files() > FILES else ""
        exceeded = _exceeded(size, deadline, limits)
        if exceeded:
            return output, exceeded
        if select.select([sys.stdin], [], [], 0)[0]:
            os._exit(0)  # nothing is asked while a command runs, so the worker has gone


def _exceeded(size: int, deadline: float, limits: dict[str, Any]) -> str:
    """The limit that a command has exceeded; "" for none. `size` is that of its output."""
    if size > LONGEST:
        return "output"
    if time.monotonic() > deadline:
        return "time"
    if _memory() > limits["memory"]:
        return "memory"
    if _files() > FILES:
        return "files"
    return ""


def _memory() -> int:
    """Bytes of memory of all processes of this sandbox but this one, and of the kernel's tables of
    their pages. Shared memory counts for each.
    """
    kilobytes = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/status") as file:
                    kilobytes += sum(
                        int(line.split()[1]) for line in file if line.startswith(COUNTED)
                    )
            except OSError:
                continue  # it has ended
    return kilobytes << 10


def _files() -> int:
    return sum(stats.f_files - stats.f_ffree for stats in map(os.statvfs, FOLDERS))


def _end_all(first: int) -> int:
    """End every other process of the sandbox. Returns the exit status of `first`."""
    status = 0
    while True:
        with suppress(ProcessLookupError):
            # all of this PID namespace but its first process, which this is
            os.kill(-1, signal.SIGKILL)
        try:
            pid, ended_with = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == first:
            status = ended_with


def _rest(read: int) -> bytes:
    """Rest of the output in the pipe. All who could write to it have ended."""
    output = b""
    while part := os.read(read, 65536):
        output += part
    return output


if __name__ == "__main__":
    main()
