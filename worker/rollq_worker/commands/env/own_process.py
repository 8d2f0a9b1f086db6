"""Checks an environment in a process of its own.

A worker fails an attempt whose step takes too long. Here the process is ended, and the report names
the call and the author's line. The same goes for code that ends the process.
"""

import faulthandler
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rollq.env import Domain
from rollq.errors import EnvironmentFailure, RolloutFailure, RollqError, SettingsError
from rollq_worker.commands.env.check import Report, check_environment, choose_tasks
from rollq_worker.commands.environment_names import load_domain, task_count
from rollq_worker.extensions.authors_line import authors_line
from rollq_worker.process.attempts.isolation import end_with_parent
from rollq_worker.process.attempts.time_limits import OPEN_LIMIT_S, TimeLimits

CLOSE_S = 5.0
"""Seconds in which environments may close when the check is stopped."""
STACK_S = 1.0
"""Longest wait in seconds for the stack of a call that takes too long."""
STACK_SIGNAL = signal.SIGUSR1
CALLS, STACK = "calls", "stack"
"""Files of the calls under way and of the stack at the signal."""


@dataclass(frozen=True)
class Checked:
    """An environment, the tasks that are played, and the report so far."""

    version: str
    splits: Mapping[str, int]
    split: str
    tasks: Sequence[int]
    report: Report


class _Call(NamedTuple):
    """A call into the environment that is under way. Times are monotonic."""

    thread: int
    task: int | None
    what: str
    limit_s: float
    since: float

    @property
    def overdue(self) -> bool:
        return time.monotonic() - self.since > self.limit_s


def check(
    env: str,
    split: str | None,
    tasks: Sequence[int] | None,
    output: int,
    show: Callable[[Checked], object],
) -> Checked:
    """Checks an environment; `show` gets each state. `output` is the file descriptor for what the
    environment prints. Raises SettingsError.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = context.Process(
            target=_check, args=(theirs, os.getpid(), folder, output, env, split, tasks)
        )
        process.start()
        theirs.close()
        try:
            checked = _Watch(ours, process, folder).until_end(show)
        finally:
            process.terminate()
            try:
                process.join(CLOSE_S)
            finally:  # also at a second Ctrl-C
                process.kill()
    return checked


class _Watch:
    """Follows the calls of the process."""

    def __init__(self, pipe: Connection, process: Any, folder: Path) -> None:
        self._pipe = pipe
        self._process = process
        self._folder = folder
        self._checked: Checked | None = None

    def until_end(self, show: Callable[[Checked], object]) -> Checked:
        try:
            while self._receive(show):
                pass
        except (EOFError, ConnectionError):
            self._process.join()
            self._add_problem(self._calls(), self._how_it_ended())
        if self._checked is None:
            raise SettingsError("the check ended before it began")
        return self._checked

    def _receive(self, show: Callable[[Checked], object]) -> bool:
        """Takes a message, or the end of a call's time. Returns True if more will come."""
        if not self._pipe.poll(0.1):
            overdue = [call for call in self._calls() if call.overdue]
            if overdue:
                line = self._line_of(overdue[0].thread)
                what = f"took longer than {overdue[0].limit_s:g} s"
                self._add_problem(overdue[:1], f"{what} ({line})" if line else what)
            return not overdue
        message = self._pipe.recv()
        if isinstance(message, RollqError):
            raise message
        if message is not None:
            self._checked = message
            show(message)
        return message is not None

    def _calls(self) -> list[_Call]:
        try:
            text = (self._folder / CALLS).read_text().partition("\n")[0]
            return [_Call(*call) for call in json.loads(text)]
        except (OSError, ValueError):  # not begun, or being written
            return []

    def _line_of(self, thread: int) -> str:
        """The author's line in which the thread is."""
        os.kill(self._process.pid, STACK_SIGNAL)
        until = time.monotonic() + STACK_S
        frames: list[tuple[str, int]] = []
        while not frames and time.monotonic() < until:
            time.sleep(0.05)
            stacks = (self._folder / STACK).read_text(errors="replace")
            own = re.search(rf"hread 0x0*{thread:x} .*\n((?:  .*\n)*)", stacks)
            lines = re.findall(r'File "(.*)", line (\d+)', own[1] if own else "")
            frames = [(file, int(line)) for file, line in reversed(lines)]
        return authors_line(frames)

    def _how_it_ended(self) -> str:
        code = self._process.exitcode
        if code < 0:
            return f"ended the process ({signal.Signals(-code).name})"
        return f"ended the process with exit code {code}"

    def _add_problem(self, calls: Sequence[_Call], text: str) -> None:
        what = " or ".join(call.what.removeprefix("environment.") for call in calls)
        text = f"{what or 'the environment'} {text}"
        if self._checked is None:
            raise SettingsError(text)
        report = self._checked.report
        tasks = [call.task for call in calls if call.task is not None]
        report.add_problem(tasks[0] if tasks else self._checked.tasks[0], text)
        report.cut_short = f"the check ended there, after {report.played} whole tasks"


def _check(
    pipe: Connection,
    parent: int,
    folder: Path,
    output: int,
    env: str,
    split: str | None,
    tasks: Sequence[int] | None,
) -> None:
    """The main function of the process."""
    if sys.platform == "linux":
        end_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    os.dup2(output, 1)
    error = None
    with open(folder / STACK, "w") as stack, open(folder / CALLS, "wb") as calls:
        faulthandler.register(STACK_SIGNAL, stack)
        try:
            _play(env, split, tasks, pipe.send, _Announcements(calls.fileno()))
        except RollqError as e:
            error = e
        except KeyboardInterrupt:
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout.flush()
        pipe.send(error)


def _interrupt(number: int, frame: object) -> NoReturn:
    """Raises KeyboardInterrupt, which nothing takes for an error of the environment. Once: the
    second signal of a Ctrl-C must not end the close of an environment.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _play(
    env: str,
    split: str | None,
    tasks: Sequence[int] | None,
    send: Callable[[Checked], None],
    announcements: "_Announcements",
) -> None:
    loading = _AnnouncedLimits(None, announcements)
    with loading.call(EnvironmentFailure, f"loading {env}", OPEN_LIMIT_S):
        domain: Domain = load_domain(env, "worker")
        splits = domain.splits()
        split = split or next(iter(splits))
        count = task_count(env, split)
    tasks = tasks or choose_tasks(count)
    if tasks[-1] >= count:
        raise SettingsError(f"{env}/{split} has tasks 0-{count - 1}; --tasks asks for {tasks[-1]}")

    def show(report: Report) -> None:
        send(Checked(domain.version, splits, split, tasks, report))

    show(Report())
    check_environment(
        domain, split, tasks, show, lambda index: _AnnouncedLimits(index, announcements)
    )


class _Announcements:
    """The calls under way, in a file. The watching process reads it, also while this one's
    interpreter is locked.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}

    def begin(self, call: _Call) -> None:
        with self._lock:
            self._calls[call.thread] = call
            self._write()

    def end(self) -> None:
        with self._lock:
            del self._calls[threading.get_ident()]
            self._write()

    def _write(self) -> None:
        text = json.dumps(list(self._calls.values()))
        os.pwrite(self._file, f"{text}\n".encode(), 0)


class _AnnouncedLimits(TimeLimits):
    """Announces a task's calls. The watching process knows when one is overdue."""

    def __init__(self, task: int | None, announcements: _Announcements) -> None:
        super().__init__()
        self._task = task
        self._announcements = announcements

    @contextmanager
    def call(self, failure: type[RolloutFailure], what: str, limit_s: float) -> Iterator[None]:
        if failure is not EnvironmentFailure:  # the scripted user, within a step
            yield
            return
        call = _Call(threading.get_ident(), self._task, what, limit_s, time.monotonic())
        self._announcements.begin(call)
        try:
            yield
        finally:
            self._announcements.end()
