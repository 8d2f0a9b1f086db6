"""Child processes that end with their parent, and whose output is kept for the error message.

However the parent ends (return, Ctrl-C, kill -9), the kernel ends its children on Linux, and a watchdog process at the
end of a pipe elsewhere. Start children from the main thread: Linux ties their life to the thread that started them.
Knows nothing of Redis or workers.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h

WATCHDOG = """
import os, signal, sys
pids = set()
for line in sys.stdin:  # ends when the parent's end of the pipe closes, however the parent went
    pids ^= {int(line)}
for pid in pids:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""


class Watchdog:
    """A process that kills the registered pids once this process is gone."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", WATCHDOG],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
        )

    def toggle(self, pid: int) -> None:
        """Registers the pid. A second call removes it, so that a later process with the same number is not killed."""
        if pipe := self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                pipe.write(f"{pid}\n".encode())
                pipe.flush()


class Child:
    """One running child process."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        """Starts the child in its own session. So Ctrl-C reaches only the parent, which stops its children in order."""
        self.name = name
        self.log = log
        self._watchdog = None if sys.platform == "linux" else _watchdog()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent() if sys.platform == "linux" else None,
            )
        if self._watchdog:
            self._watchdog.toggle(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; minus the signal's number when a signal ended it, None while it runs."""
        return self._process.poll()

    def tail(self, lines: int = 15) -> str:
        with self.log.open("rb") as f:
            f.seek(max(0, self.log.stat().st_size - 16384))
            return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])

    def how_it_ended(self) -> str:
        code = self.exit_code
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {signal.Signals(-code).name}"
        output = "\n".join(f"  | {line}" for line in self.tail().splitlines()) or "  | (no output)"
        return f"{self.name} ended early ({how}); its last lines:\n{output}"

    def stop(self, grace_s: float = 8.0) -> None:
        """Sends SIGTERM, and SIGKILL after `grace_s` seconds. Safe to repeat."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also when a second Ctrl-C ends the wait
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            if self._watchdog:
                self._watchdog.toggle(self.pid)
                self._watchdog = None


def _die_with_parent() -> Callable[[], None]:
    """Runs in the child between fork and exec, so everything is imported and looked up before the fork."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def request_signal() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)

    return request_signal


_shared: list[Watchdog] = []


def _watchdog() -> Watchdog:
    if not _shared:
        _shared.append(Watchdog())
    return _shared[0]
