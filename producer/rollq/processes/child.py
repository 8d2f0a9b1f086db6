"""Child processes that end with their parent, and whose output is kept for the error message.

However the parent ends (return, Ctrl-C, kill -9), Linux ends its children. Elsewhere a parent that
is killed leaves them. Start children from the main thread: Linux ties their life to the thread that
started them. Knows nothing of Redis or workers.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Child:
    """One running child process."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Starts the child in its own session. So Ctrl-C reaches only the parent, which stops its
        children in order.
        """
        self.name = name
        self.log = log
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

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; minus the signal's number when a signal ended it, None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of its output."""
        with self.log.open("rb") as f:
            f.seek(max(0, self.log.stat().st_size - 16384))
            return "\n".join(f.read().decode(errors="replace").splitlines()[-15:])

    def how_it_ended(self) -> str:
        code = self.exit_code
        how = (
            f"exit code {code}"
            if code is None or code >= 0
            else f"signal {signal.Signals(-code).name}"
        )
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


def _die_with_parent() -> Callable[[], None]:
    """Runs in the child between fork and exec, so everything is imported and looked up before the
    fork.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def request_signal() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)

    return request_signal
