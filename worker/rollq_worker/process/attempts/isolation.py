"""Environments in their own processes, for code that may hang, crash or take all memory.

Each episode gets a process, forked from a server that has loaded the environments once. At worst
the process is killed and the attempt fails. The worker only waits on a pipe, so it stays
responsive. The user stays in the worker: the environment's messages to it come over the pipe.

These processes end with the worker, however it ends. A process whose interpreter is locked would
never see its pipe close, so the kernel kills it (Linux only).
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from fnmatch import fnmatchcase
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from rollq.env import Action, Environment, Grade, Observation, User, attempt_labels
from rollq.env.attempt import AttemptLabels, labelled
from rollq.errors import EnvironmentFailure, ForOtherWorkers, RolloutFailure
from rollq.job import Json
from rollq.processes.child import PR_SET_PDEATHSIG
from rollq_worker.environments import domain

CHECK_S = 0.25
"""Longest time in seconds between two calls of `check` while waiting."""
MAX_ANSWER_BYTES = 1 << 24
"""Longest answer of an environment, in bytes of its pickle."""
CLOSE_LIMIT_S = 5.0
"""Longest close of an environment in seconds. It is short, because a step that hangs takes all of
it.
"""
PRELOAD_VARIABLE = "ROLLQ_PRELOAD"
"""Environment variable: the environments that the fork server loads."""
WORKER_VARIABLE = "ROLLQ_ISOLATED_FOR"
"""Environment variable: pid of the worker with which the fork server ends. Only set on Linux."""
_server = 0
"""Pid of the fork server, set in it and in the processes forked from it, on Linux."""


class Isolation:
    """Opens environments in their own processes. `patterns` are environment names, in which `*`
    stands for any characters.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._context: ForkServerContext | None = None
        self._lock = Lock()  # multiprocessing's list of its processes is not thread-safe
        self._server = _ForkServerStarter()

    def applies(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def start(self) -> None:
        """Starts the fork server, if there is anything to isolate."""
        if not self._patterns:
            return
        os.environ[PRELOAD_VARIABLE] = " ".join(name for name in self._patterns if "*" not in name)
        if sys.platform == "linux":
            os.environ[WORKER_VARIABLE] = str(os.getpid())
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["rollq_worker.process.attempts.forkserver_preload", "rollq.cli"]
        )
        self._server.start()
        self._server.ensure()

    @contextmanager
    def open(
        self,
        name: str,
        split: str,
        task: int,
        args: Mapping[str, Json],
        check: Callable[[], None],
    ) -> Iterator["IsolatedEnvironment"]:
        """An episode's environment. Its process ends with the block. `check` is called while
        waiting and may raise.

        Raises the errors of opening the environment.
        """
        assert self._context is not None, "start() comes first"
        with self._lock:
            self._server.ensure()
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve,
                args=(theirs, attempt_labels(), name, split, task, dict(args)),
                daemon=True,
            )
            process.start()
            theirs.close()
        try:
            with contextlib.closing(IsolatedEnvironment(ours, process, check)) as environment:
                yield environment
        finally:
            with self._lock:
                ours.close()
                process.kill()
                process.join(5.0)
                process.close()


class _ForkServerStarter(Thread):
    """Starts the fork server, and starts it again when it has died.

    Linux ends the server with the thread that started it, so this thread lives as long as the
    worker.
    """

    def __init__(self) -> None:
        super().__init__(name="isolation", daemon=True)
        self._requests: SimpleQueue[Future[None]] = SimpleQueue()

    def ensure(self) -> None:
        """Returns once the server runs."""
        done: Future[None] = Future()
        self._requests.put(done)
        done.result()

    def run(self) -> None:
        while True:
            done = self._requests.get()
            try:
                forkserver.ensure_running()
                done.set_result(None)
            except BaseException as e:  # for the thread that asked
                done.set_exception(e)


class IsolatedEnvironment:
    """Implements rollq.env.Environment on the worker's side of the pipe. Every call waits for the
    answer until `check` raises.
    """

    def __init__(self, pipe: Connection, process: Any, check: Callable[[], None]) -> None:
        self._pipe = pipe
        self._process = process
        self._check = check
        self._user: User | None = None
        self.tools: Sequence[Json]
        self.tools, limits, self._closes = self._wait("opening the environment")
        vars(self).update(limits)
        self.system_prompt = ""

    def reset(self, user: User) -> str | Observation:
        self._user = user
        opening: str | Observation
        opening, self.system_prompt = self._ask("reset", None, "environment.reset")
        return opening

    def step(self, action: Action) -> Observation:
        observation: Observation = self._ask("step", action, f"environment.step({action.name})")
        return observation

    def grade(self) -> Grade:
        grade: Grade = self._ask("grade", None, "environment.grade")
        return grade

    def close(self) -> None:
        """Has its process close the environment, at the end of the pipe. There is no answer: it may
        be in a step.
        """
        self._pipe.close()
        if self._closes:
            wait([self._process.sentinel], CLOSE_LIMIT_S)

    def _ask(self, what: str, argument: Any, name: str) -> Any:
        with contextlib.suppress(OSError):
            # its process is gone; _wait reads its last answer, or the end of the pipe
            self._pipe.send((what, argument))
        return self._wait(name)

    def _wait(self, name: str) -> Any:
        while True:
            while not self._pipe.poll(CHECK_S):
                self._check()
            try:
                kind, value = self._pipe.recv()
            except (EOFError, OSError) as e:
                self._process.join(1.0)
                raise EnvironmentFailure(
                    f"{name}: its process ended with exit code {self._process.exitcode}"
                ) from e
            if kind == "user":
                with contextlib.suppress(OSError):
                    self._pipe.send(self._reply(*value))
            elif kind == "failed":
                failure, message, trace = value
                raise failure(message) from _RemoteTraceback(trace)
            else:
                return value

    def _reply(self, what: str, argument: str | None) -> str | None:
        assert self._user is not None
        if what == "open":
            return self._user.open()
        return self._user.reply(argument or "")


class _RemoteTraceback(Exception):
    """The cause of an exception that came over the pipe; its text is the traceback in the other
    process.
    """


class _PipedUser:
    """The user in the environment's process: every call goes over the pipe to the worker."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def open(self) -> str:
        return self._ask_worker("open", None)

    def reply(self, message: str) -> str:
        return self._ask_worker("reply", message)

    def recall(self, heard: str | None, reply: str) -> None:
        raise NotImplementedError("only the worker replays earlier messages to a user")

    def _ask_worker(self, what: str, argument: str | None) -> str:
        _send(self._pipe, "user", (what, argument))
        answer: str = self._pipe.recv()
        return answer


def _serve(
    pipe: Connection,
    labels: AttemptLabels,
    name: str,
    split: str,
    task: int,
    args: Mapping[str, Json],
) -> None:
    """The main function of the environment's process, until the worker closes the pipe or something
    fails. Then the environment is closed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
    if _server:
        end_with_parent(_server)
    _offer_to_oom_killer()
    environment = None
    try:
        with labelled(labels):
            environment = domain(name).open(split, task, args)
        _answer(pipe, environment)
    except (RolloutFailure, ForOtherWorkers) as e:
        _send_failure(pipe, type(e), str(e))
    except BaseException as e:  # any exception ends this process only; the end of the pipe is one
        _send_failure(pipe, EnvironmentFailure, f"{type(e).__name__}: {e}")
    _end(environment)


def _answer(pipe: Connection, environment: Environment) -> None:
    """Carries out the worker's calls. Raises EOFError or OSError once it has closed the pipe."""
    limits = {}
    for name in ("longest_step_s", "longest_grade_s"):
        if hasattr(environment, name):
            limits[name] = getattr(environment, name)
    _send(pipe, "done", (list(environment.tools), limits, hasattr(environment, "close")))
    while True:
        what, argument = pipe.recv()
        match what:
            case "reset":
                first = environment.reset(_PipedUser(pipe))
                _send(pipe, "done", (first, environment.system_prompt))
            case "step":
                _send(pipe, "done", environment.step(argument))
            case "grade":
                _send(pipe, "done", environment.grade())


def _end(environment: Environment | None) -> None:
    """Closes the environment and ends this process, whatever other threads it has."""
    try:
        getattr(environment, "close", lambda: None)()
        sys.stdout.flush()
    except BaseException:  # the episode has ended: it is for the log only
        traceback.print_exc()
    finally:
        os._exit(0)


def _send_failure(pipe: Connection, failure: type[Exception], message: str) -> None:
    with contextlib.suppress(OSError):  # the worker has closed the pipe
        _send(pipe, "failed", (failure, message, traceback.format_exc()))


def _send(pipe: Connection, kind: str, value: Any) -> None:
    message = ForkingPickler.dumps((kind, value))
    if len(message) > MAX_ANSWER_BYTES:  # it would take that much memory in the worker too
        reason = f"an answer of {len(message)} bytes; at most {MAX_ANSWER_BYTES} are allowed"
        message = ForkingPickler.dumps(("failed", (EnvironmentFailure, reason, "")))
    pipe.send_bytes(message)


def _offer_to_oom_killer() -> None:
    """Lets the system end this process before the worker when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def end_with_worker() -> None:
    """Has the fork server end with its worker, and its forks with it. It is called before the
    server loads anything.
    """
    global _server
    worker = os.environ.pop(WORKER_VARIABLE, "")
    if worker:
        end_with_parent(int(worker))
        _server = os.getpid()


def end_with_parent(parent: int) -> None:
    """Has the kernel end this process when `parent` ends, whatever this process is doing then."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
