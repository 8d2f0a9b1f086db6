"""Environments in processes of their own, for code that cannot be trusted to return, or to leave the machine standing.

One process an episode, forked from a server that has loaded the environments once. Whatever happens in it (a crash, a
call that holds the interpreter's lock for ever, memory without end) ends with a kill and one failed attempt; the worker
waits on a pipe meanwhile and stays responsive. The user stays in the worker: what the environment says to it comes back
over the pipe.

However the worker ends, they end with it: one that holds the interpreter would never see that its pipe is closed, nor
would a thread of its own run, so on Linux the kernel kills it and elsewhere a watchdog process does.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from fnmatch import fnmatchcase
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from rollq.errors import EnvironmentFailure, RolloutFailure, UserFailure
from rollq.job import Json
from rollq.processes.child import PR_SET_PDEATHSIG, Watchdog
from rollq_worker.environments import domain
from rollq_worker.process.time_limits import OPEN_S, STEP_S
from rollq_worker.protocols import Action, Grade, Observation, User

CHECK_S = 0.25
"""At most this long between two calls of `check` while waiting."""
LARGEST_ANSWER = 1 << 24
"""Bytes, pickled."""
PRELOAD = "ROLLQ_PRELOAD"
"""Environment variable that names to the fork server what to load."""
WORKER = "ROLLQ_ISOLATED_FOR"
"""Environment variable that names to the fork server the worker that it is to die with; unset: a watchdog is there."""
TIED = sys.platform == "linux"
"""Whether the kernel ends a process with its parent."""
_server = 0
"""Pid of the fork server, in itself and in the processes forked from it; 0: nothing ties them."""


class Isolation:
    """The environments that run in processes of their own; `patterns` are names, `*` standing for any part of one."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._context: ForkServerContext | None = None
        self._lock = Lock()  # multiprocessing keeps books of its processes that know no threads
        self._server = _Starter()
        self._watchdog: Watchdog | None = None

    def applies(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def start(self) -> None:
        """Start the fork server, which loads what it is to share, if there is anything to isolate."""
        if not self._patterns:
            return
        os.environ[PRELOAD] = " ".join(name for name in self._patterns if "*" not in name)
        if TIED:
            os.environ[WORKER] = str(os.getpid())
        else:
            os.environ.pop(WORKER, None)
            self._watchdog = Watchdog()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["rollq_worker.process.forkserver_preload", "rollq.cli"])
        self._server.start()
        self._server.ensure()

    @contextmanager
    def open(
        self, name: str, split: str, task: int, args: Mapping[str, Json], check: Callable[[], None]
    ) -> Iterator["IsolatedEnvironment"]:
        """An episode's environment, whose process ends with the block. `check` is called while waiting, and may raise.

        Raises what opening it raises.
        """
        assert self._context is not None, "start() comes first"
        with self._lock:
            self._server.ensure()
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, name, split, task, dict(args)), daemon=True)
            process.start()
            assert process.pid is not None
            if self._watchdog:
                self._watchdog.toggle(process.pid)
            theirs.close()
        try:
            yield IsolatedEnvironment(ours, process, check)
        finally:
            with self._lock:
                ours.close()
                process.kill()
                process.join(5.0)
                if self._watchdog and process.pid is not None:
                    self._watchdog.toggle(process.pid)
                process.close()


class _Starter(Thread):
    """Starts the fork server, also when it has died: Linux ties its life to the thread that started it, to this one."""

    def __init__(self) -> None:
        super().__init__(name="isolation", daemon=True)  # which lives as long as the worker
        self._asked: SimpleQueue[Future[None]] = SimpleQueue()

    def ensure(self) -> None:
        """Returns once it runs."""
        done: Future[None] = Future()
        self._asked.put(done)
        done.result()

    def run(self) -> None:
        while True:
            done = self._asked.get()
            try:
                forkserver.ensure_running()
                done.set_result(None)
            except BaseException as e:  # it is the asker's
                done.set_exception(e)


class IsolatedEnvironment:
    """Implements protocols.Environment on the worker's side of the pipe."""

    def __init__(self, pipe: Connection, process: Any, check: Callable[[], None]) -> None:
        self._pipe = pipe
        self._process = process
        self._check = check
        self._user: User | None = None
        self.tools: Sequence[Json] = self._wait("opening the environment", OPEN_S)
        self.system_prompt = ""

    def reset(self, user: User) -> str:
        self._user = user
        first, self.system_prompt, self.tools = self._ask("reset", None, "environment.reset")
        return str(first)

    def step(self, action: Action) -> Observation:
        observation: Observation = self._ask("step", action, f"environment.step({action.name})")
        return observation

    def grade(self) -> Grade:
        grade: Grade = self._ask("grade", None, "environment.grade")
        return grade

    def _ask(self, what: str, argument: Any, name: str) -> Any:
        with contextlib.suppress(OSError):  # its process is gone: what it left in the pipe, or did not, is read next
            self._pipe.send((what, argument))
        return self._wait(name, STEP_S)

    def _wait(self, name: str, limit_s: float) -> Any:
        left = limit_s
        while True:
            began = time.monotonic()
            while not self._pipe.poll(min(CHECK_S, left)):
                self._check()
                if time.monotonic() - began > left:
                    raise EnvironmentFailure(f"{name}: nothing in {limit_s:g} s; its process is killed")
            left -= time.monotonic() - began  # the user's time does not count
            try:
                kind, value = self._pipe.recv()
            except (EOFError, OSError) as e:
                self._process.join(1.0)
                raise EnvironmentFailure(f"{name}: its process ended with exit code {self._process.exitcode}") from e
            if kind == "user":
                with contextlib.suppress(OSError):
                    self._pipe.send(self._reply(*value))
            elif kind == "failed":
                failure, message, trace = value
                raise failure(message) from _Remote(trace)
            else:
                return value

    def _reply(self, what: str, argument: str | None) -> str | None:
        assert self._user is not None
        match what:
            case "open":
                return self._user.open()
            case "reply":
                return self._user.reply(argument or "")
        raise UserFailure(f"an environment cannot call {what} of its user")


class _Remote(Exception):
    """Stands for an exception of the other process; its text is the traceback there."""


class _PipedUser:
    """The user, as the environment's process sees it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def open(self) -> str:
        return self._said("open", None)

    def reply(self, message: str) -> str:
        return self._said("reply", message)

    def recall(self, heard: str | None, said: str) -> None:
        raise NotImplementedError("only the worker tells a user what was said before")

    def _said(self, what: str, argument: str | None) -> str:
        _answer(self._pipe, "user", (what, argument))
        said: str = _hear(self._pipe)
        return said


def _serve(pipe: Connection, name: str, split: str, task: int, args: Mapping[str, Json]) -> None:
    """The environment's process, until the worker hangs up or something fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
    if _server:
        _die_with(_server)
    _die_first()
    try:
        environment = domain(name).open(split, task, args)
        _answer(pipe, "done", list(environment.tools))
        while True:
            what, argument = _hear(pipe)
            match what:
                case "reset":
                    first = environment.reset(_PipedUser(pipe))
                    _answer(pipe, "done", (first, environment.system_prompt, list(environment.tools)))
                case "step":
                    _answer(pipe, "done", environment.step(argument))
                case "grade":
                    _answer(pipe, "done", environment.grade())
    except RolloutFailure as e:
        _answer(pipe, "failed", (type(e), str(e), traceback.format_exc()))
    except BaseException as e:  # whatever it is, it ends this process and no other
        _answer(pipe, "failed", (EnvironmentFailure, f"{type(e).__name__}: {e}", traceback.format_exc()))


def _hear(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        os._exit(0)  # the worker has hung up; nobody wants to know


def _answer(pipe: Connection, kind: str, value: Any) -> None:
    message = ForkingPickler.dumps((kind, value))
    if len(message) > LARGEST_ANSWER:  # it would take that memory in the worker as well
        failure = (EnvironmentFailure, f"an answer of {len(message)} bytes; {LARGEST_ANSWER} may be had", "")
        message = ForkingPickler.dumps(("failed", failure))
    try:
        pipe.send_bytes(message)
    except OSError:
        os._exit(0)


def _die_first() -> None:
    """When memory runs out, the system ends this process rather than the worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def serve_until_death() -> None:
    """In the fork server, before it loads anything: from now on it ends with its worker, and what it forks with it."""
    global _server
    if worker := os.environ.pop(WORKER, ""):
        _die_with(int(worker))
        _server = os.getpid()


def _die_with(parent: int) -> None:
    """This process's parent is `parent`, or has died: then this one ends too, whatever it is doing."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # before we asked
        os._exit(1)
