"""The first process of a sandbox: it starts the commands, one after the other, and bounds each.

A bare interpreter runs its source text, so it imports nothing of rollq. Requests come as lines of
JSON on stdin: a command (`argv`), a `folder` to make, a file to `write`, whose bytes follow, or
one to `read`. Each reply on stdout is a line of JSON, followed by `size` bytes of output.

A command's processes end with it. This process cannot be killed from inside, because it is the
first of its PID namespace; others cannot read its memory, because it is not dumpable. It exits when
its worker does, because stdin closes then.
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

SHOWN_OUTPUT = 32_768
"""Number of bytes of a command's output that are shown."""
MOST_OUTPUT = 1 << 20
"""Number of bytes of output after which a command is stopped. box.STOPPED names this number."""
LARGEST_FILE = 16_000_000
"""Number of bytes of a file that may be read out of the sandbox."""
MOST_FILES = 50_000
"""Number of files that a sandbox may hold: each takes memory of the kernel's. box.STOPPED names
this number.
"""
MEMORY_FIELDS = ("RssAnon:", "RssShmem:", "VmSwap:", "VmPTE:")
"""Lines of /proc/PID/status that count as a process's memory. Pages of programs and libraries are
shared, so they do not count.
"""
FOLDERS = ("/work", "/tmp", "/dev/shm")
"""The folders that take files."""
MOST_QUEUED_SIGNALS = 1024
"""Queued signals and timers, over the whole sandbox (RLIMIT_SIGPENDING)."""
PR_SET_DUMPABLE = 4


def main() -> None:
    """Serves requests until stdin ends. Arguments: the limits as JSON, and the user id to take on
    (0: keep it).
    """
    limits = json.loads(sys.argv[1])
    user = int(sys.argv[2])
    if os.getpid() != 1:
        sys.exit("the shell of a sandbox must be the first process of its PID namespace")
    _set_limits(limits)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    _reply({"ready": True}, b"")
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if "argv" in request:
            reply, output = _run(request, limits["memory"])
        else:
            reply, output = _transfer(request)
        _reply(reply, output)


def _set_limits(limits: dict[str, Any]) -> None:
    """Sets the limits that the kernel enforces for each process. The number of processes is counted
    over the whole sandbox.
    """
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 128),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_SIGPENDING, MOST_QUEUED_SIGNALS),
    ):
        resource.setrlimit(kind, (value, value))


def _reply(reply: dict[str, Any], output: bytes) -> None:
    head = json.dumps({**reply, "size": len(output)})
    sys.stdout.buffer.write(head.encode() + b"\n" + output)
    sys.stdout.buffer.flush()


def _transfer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Makes a folder, or writes or reads a file. Returns the reply and the content read."""
    content = b""
    if "write" in request:
        # Outside the try: without the whole content, the next line would not be a request.
        content = sys.stdin.buffer.read(request["size"])
    try:
        if "folder" in request:
            os.makedirs(request["folder"], exist_ok=True)
            return {}, b""
        if "write" in request:
            _write_file(request["write"], content, request["mode"])
            return {}, b""
        return {}, _read_file(request["read"])
    except (OSError, ValueError, MemoryError) as e:
        # ValueError: no file can have such a name
        return {"error": str(e), "missing": isinstance(e, FileNotFoundError)}, b""


def _write_file(path: str, content: bytes, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The policy may have made a named pipe there: opening it would wait for a reader.
    with suppress(FileNotFoundError):
        os.remove(path)
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def _read_file(path: str) -> bytes:
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(LARGEST_FILE + 1)
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_FILE:
        raise OSError(f"{path} has more than {LARGEST_FILE} bytes")
    return content


def _run(request: dict[str, Any], memory: int) -> tuple[dict[str, Any], bytes]:
    """Runs one command to its end, or to the end of its time, memory or output."""
    output_fd, write_fd = os.pipe()
    try:
        pid = _start(request["argv"], {**os.environ, **request["env"]}, write_fd)
    except (OSError, ValueError) as e:
        # ValueError: no process can have such a name or such variables
        os.close(output_fd)
        message = f"{request['argv'][0]}: {e.strerror if isinstance(e, OSError) else e}"
        return {"code": 126, "stopped": ""}, message.encode()
    finally:
        os.close(write_fd)
    process_fd = os.pidfd_open(pid)
    try:
        deadline = time.monotonic() + request["seconds"]
        output, stopped = _watch(output_fd, process_fd, deadline, memory)
    finally:
        status = _end_all(pid)
        os.close(process_fd)
    output += _read_rest(output_fd)
    os.close(output_fd)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "stopped": stopped}, output[:SHOWN_OUTPUT]


def _start(argv: list[str], environment: dict[str, str], write_fd: int) -> int:
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        file_actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, write_fd, 1),
            (os.POSIX_SPAWN_DUP2, write_fd, 2),
        ]
        # Python ignores SIGPIPE, and a command must not.
        return os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=file_actions,
            setsid=True,
            setsigdef=[signal.SIGPIPE],
        )
    finally:
        os.close(null)


def _watch(output_fd: int, process_fd: int, deadline: float, memory: int) -> tuple[bytes, str]:
    """Reads the output until the command ends or exceeds a limit. Returns the output and the name
    of the limit, or "".
    """
    output = b""
    size = 0
    waiting = [process_fd, output_fd]
    while True:
        ready, _, _ = select.select(waiting, [], [], 0.05)
        if output_fd in ready:
            part = os.read(output_fd, 65536)
            size += len(part)
            output = (output + part)[:SHOWN_OUTPUT]
            if not part:
                waiting.remove(output_fd)
        if process_fd in ready:
            return output, "files" if _files() > MOST_FILES else ""
        exceeded = _exceeded(size, deadline, memory)
        if exceeded:
            return output, exceeded
        if select.select([sys.stdin], [], [], 0)[0]:
            # The worker sends nothing while a command runs, so this is the end of stdin: it has
            # exited.
            os._exit(0)


def _exceeded(size: int, deadline: float, memory: int) -> str:
    """The limit that a command has exceeded, or "". `size` is that of its output."""
    if size > MOST_OUTPUT:
        return "output"
    if time.monotonic() > deadline:
        return "time"
    if _used_memory() > memory:
        return "memory"
    if _files() > MOST_FILES:
        return "files"
    return ""


def _used_memory() -> int:
    """Bytes that the sandbox's processes use, with their page tables and without this process.
    Shared memory counts once for each process.
    """
    kilobytes = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/status") as file:
                    kilobytes += sum(
                        int(line.split()[1]) for line in file if line.startswith(MEMORY_FIELDS)
                    )
            except OSError:
                continue  # it has ended
    return kilobytes << 10


def _files() -> int:
    return sum(stats.f_files - stats.f_ffree for stats in map(os.statvfs, FOLDERS))


def _end_all(first: int) -> int:
    """Ends every other process of the sandbox. Returns the exit status of `first`."""
    status = 0
    while True:
        with suppress(ProcessLookupError):
            # -1: every process of this PID namespace except the first, which is this one
            os.kill(-1, signal.SIGKILL)
        try:
            pid, ended_with = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == first:
            status = ended_with


def _read_rest(output_fd: int) -> bytes:
    """Reads what is left in the pipe. Every process that could write to it has ended."""
    output = b""
    while part := os.read(output_fd, 65536):
        output += part
    return output


if __name__ == "__main__":
    main()
