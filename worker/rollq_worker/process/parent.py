"""The parent of several worker processes, for a machine with many cores: `--processes N`.

It forks them once everything is imported and checked, so that they share that memory, and starts
one again that ends by itself. The parent has no threads and no connections, because a fork would
break them. Each child is a worker of its own, with its own name, leases and look at the engines.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rollq.processes.child import PR_SET_PDEATHSIG
from rollq_worker.process.shutdown import EXIT_AFTER_S, LEAVING, SIGNALS

STEADY_S = 60.0
"""Seconds after which a child counts as well. After one that ended sooner, the next waits."""
LONGEST_PAUSE_S = 30.0
"""The first wait is 1 s, each further one twice as long, up to this."""
KILL_AFTER_S = EXIT_AFTER_S + 1.0
"""Seconds after the signal to stop after which a child is killed that has not ended."""
WELL = (0, -signal.SIGTERM)
"""Exit codes of a child that was stopped; the second one's, before it held jobs."""
WRONG_SETTING = 2
"""Exit code of a child that the next one would repeat."""


class _Place:
    """The place of one child, and of those that follow it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        """0 while none runs."""
        self.due = 0.0
        """Monotonic time at which the next one starts."""
        self._pause_s = 0.5
        self._started = 0.0

    @property
    def is_steady(self) -> bool:
        """True once its child has run for long."""
        return time.monotonic() - self._started >= STEADY_S

    def fork(self) -> bool:
        """True in the child. Where none can be made, another try follows."""
        self._started = time.monotonic()
        try:
            self.pid = os.fork()
        except OSError as e:  # too many processes, or no memory
            pause_s = self.ended()
            _say(f"no further process: {e}; another try in {pause_s:g} s")
            return False
        return self.pid == 0

    def ended(self) -> float:
        """The child has ended. Returns the seconds until the next one starts."""
        self._pause_s = 1.0 if self.is_steady else min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.due = time.monotonic() + self._pause_s
        self.pid = 0
        return self._pause_s


class Parent:
    """Forks and keeps `count` children, each of which touches a file of its own: `alive_file` with
    its number. The parent keeps `alive_file` as old as the oldest of these.
    """

    def __init__(self, count: int, alive_file: Path | None = None) -> None:
        self._places = [_Place(number) for number in range(count)]
        self._alive_file = alive_file
        self._pid = os.getpid()
        self._stopped_at: float | None = None
        self._exit_code = 0
        self._reader, self._writer = os.pipe()

    def check(self, check: Callable[[], object]) -> None:
        """Makes the checks in a process that ends with them, because they start threads. It raises
        what they raise, or SystemExit. This one raises SystemExit with its exit code if that is
        not 0.
        """
        sys.stdout.flush()  # the child would print it again
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a supervisor may ignore it
        pid = os.fork()
        if pid == 0:
            check()
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            sys.exit(code if code > 0 else 128 - code)

    def fork(self) -> int:
        """Returns in each child, with its number. In the parent it raises SystemExit with the exit
        code, once it was told to stop and all children have ended.
        """
        self._listen()
        self._forget_life()
        while True:
            self._reap()
            if self._stopped_at is None:
                for place in self._due():
                    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
                    if place.fork():
                        self._become_child()
                        return place.number
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            elif not self._running():
                sys.exit(self._exit_code)
            elif time.monotonic() - self._stopped_at >= KILL_AFTER_S:
                self._signal(signal.SIGKILL)
            self._show_life()
            self._hear()

    def _listen(self) -> None:
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: None)

    def _become_child(self) -> None:
        """Ctrl-C in a terminal reaches only the parent, which stops its children. One that is
        killed stops them as well (Linux only).
        """
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.close(self._reader)
        os.close(self._writer)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != self._pid:  # it ended before the call
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _hear(self) -> None:
        """Waits a second, or until there is a signal."""
        select.select([self._reader], [], [], 1.0)
        with suppress(BlockingIOError):
            for number in os.read(self._reader, 100):
                if number in SIGNALS:
                    self._stop()

    def _stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._signal(signal.SIGTERM)
        else:
            _say(LEAVING)
            self._exit_code = self._exit_code or 1
            self._signal(signal.SIGKILL)

    def _due(self) -> Iterator[_Place]:
        for place in self._places:
            if not place.pid and time.monotonic() >= place.due:
                yield place

    def _running(self) -> Sequence[_Place]:
        return [place for place in self._places if place.pid]

    def _signal(self, number: int) -> None:
        for place in self._running():
            os.kill(place.pid, number)

    def _reap(self) -> None:
        for place in self._running():
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if not pid:
                continue
            code = os.waitstatus_to_exitcode(status)
            was_steady = place.is_steady  # then the code is that of other people's os._exit
            pause_s = place.ended()
            if self._stopped_at is not None:
                self._exit_code = self._exit_code or int(code not in WELL)
            elif code == WRONG_SETTING and not was_steady:
                self._exit_code = code
                self._stop()
            else:
                how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                _say(f"process {pid} ended ({how}); another one starts in {pause_s:g} s")

    def _show_life(self) -> None:
        if self._alive_file is None:
            return
        with suppress(OSError):  # one has not touched its file yet
            oldest = min(file.stat().st_mtime for file in self._own_files(self._alive_file))
            os.utime(self._alive_file, (oldest, oldest))

    def _forget_life(self) -> None:
        """Forgets an earlier worker's children, which are not a sign that these are dead."""
        if self._alive_file is not None:
            for file in self._own_files(self._alive_file):
                file.unlink(missing_ok=True)

    def _own_files(self, alive_file: Path) -> Sequence[Path]:
        return [own_alive_file(alive_file, place.number) for place in self._places]


def own_alive_file(alive_file: Path, number: int) -> Path:
    """The file that the child with this number touches."""
    return alive_file.with_name(f"{alive_file.name}.{number}")


def _say(what: str) -> None:
    with suppress(OSError):  # who has read it may be gone
        os.write(2, f"rollq worker: {what}\n".encode())
