"""Runs an agent program: a function in a thread of the worker, or a command in a child process.

Either gets a base URL and a key, and speaks with the endpoint of its episode only. It knows no
tokens and no journal.
"""

import asyncio
import codecs
import inspect
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rollq.env import AgentFunction, Episode
from rollq.errors import (
    AgentFailure,
    EnvironmentFailure,
    ForOtherWorkers,
    JobFailure,
    WorkerFailure,
)
from rollq.job import Json
from rollq_worker.agents.programs.folders import AgentFolder
from rollq_worker.agents.programs.guard import Guard
from rollq_worker.agents.programs.users import AgentUsers

log = logging.getLogger(__name__)

KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
"""The environment variables of the worker that a command has too. Others may hold passwords."""
EPISODE_URL = "ROLLQ_EPISODE_URL"
"""The variable with the address of an episode, which no other command's has."""
KEPT_OUTPUT = 4000
"""Number of characters that are kept of the end of a command's output."""
GRACE_S = 0.5
"""Seconds for which an agent is given to end by itself, and its last words to arrive."""
STOP_S = 3.0
"""Seconds from SIGTERM to SIGKILL, and for which the end of an agent's thread is waited for."""


KILLING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
"""Signals that come from another program. A shell that runs the agent exits with 128 and the
signal.
"""


SANDBOX_FAILURES = (EnvironmentFailure, ForOtherWorkers, JobFailure, WorkerFailure)
"""Errors that an agent function meets in its sandbox, and that are not its own."""


class AgentKilled(AgentFailure):
    """The agent was ended by another program: its policy's command, or the kernel for want of
    memory.
    """


_lost_threads: set[threading.Thread] = set()
"""Threads of agent functions that did not end with their episode."""


def lost_agent_threads() -> int:
    """Number of threads of this process that agent functions keep for ever."""
    for thread in [*_lost_threads]:
        if not thread.is_alive():
            _lost_threads.discard(thread)
    return len(_lost_threads)


class Program(Protocol):
    """A running agent."""

    def ended(self) -> bool: ...

    def result(self) -> str | None:
        """Answer of the ended program, if it gave one. Raises AgentFailure."""
        ...

    def stop(self) -> None:
        """Ends it, if it has not ended. Safe to repeat."""
        ...

    @property
    def output(self) -> str:
        """The end of its output, for people."""
        ...


Starter = Callable[[Episode, Callable[[], None]], Program]
"""Starts an agent; the second argument is called once it has ended."""


class AgentThread:
    """An agent function that runs in a thread of this process."""

    output = ""

    def __init__(
        self,
        name: str,
        function: AgentFunction,
        episode: Episode,
        args: Mapping[str, Json],
        on_end: Callable[[], None],
    ) -> None:
        self._name = name
        self._call: Callable[[], Any] = partial(function, episode, **args)
        self._on_end = on_end
        self._answer: Any = None
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rollq-agent {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            answer = self._call()
            self._answer = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
        except BaseException as e:
            # sys.exit() or a cancelled coroutine must not pass for an end without errors
            self._error = e
        finally:
            self._over.set()
            self._on_end()

    def ended(self) -> bool:
        return self._over.is_set()

    def result(self) -> str | None:
        if isinstance(self._error, SANDBOX_FAILURES):
            raise self._error
        if self._error is not None:
            kind = type(self._error).__name__
            raise AgentFailure(
                f"the agent {self._name} raised {kind}: {self._error}"
            ) from self._error
        if self._answer is not None and not isinstance(self._answer, str):
            raise AgentFailure(
                f"the agent {self._name} returned a {type(self._answer).__name__}, not a string or "
                "None"
            )
        return self._answer

    def stop(self) -> None:
        if not self._over.wait(STOP_S):  # its requests are refused by now
            frame = sys._current_frames().get(self._thread.ident or 0)
            stack = " in ".join(
                f"{call.name} ({call.filename}:{call.lineno})"
                for call in traceback.extract_stack(frame)[-2:]
            )
            log.error("the thread of agent %s does not end; it is in %s", self._name, stack)
            _lost_threads.add(self._thread)


class AgentProcess:
    """An agent command that runs in a child process, in a folder of its own that is removed
    afterwards.

    Its own processes end with it, and all end with the worker. It gets base URL, key and model in
    the variables of OpenAI's and Anthropic's clients, and ROLLQ_EPISODE_URL. The end of its output
    is kept. With `users`, it runs as one of them.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        episode: Episode,
        args: Mapping[str, Json],
        on_end: Callable[[], None],
        users: AgentUsers | None = None,
        *,
        job_id: str,
    ) -> None:
        self._name = name
        self._folder = AgentFolder(job_id)
        self._guard: Guard | None = None
        self._stopped = threading.Event()
        self._users = users
        self._user: int | None = None
        self._last: deque[str] = deque(maxlen=KEPT_OUTPUT)
        self._on_end = on_end
        root = episode.base_url.removesuffix("/v1")
        variables = {
            "OPENAI_BASE_URL": episode.base_url,
            "ANTHROPIC_BASE_URL": root,
            **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), episode.api_key),
            **dict.fromkeys(("OPENAI_MODEL", "ANTHROPIC_MODEL"), episode.model),
            EPISODE_URL: f"{root}/episode",
            "TMPDIR": str(self._folder.path),
            **{
                f"ROLLQ_ARG_{key.upper()}": value if isinstance(value, str) else repr(value)
                for key, value in args.items()
            },
        }
        kept = {key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ}
        try:
            guard = self._guard = Guard()
            if users is not None:
                self._user = users.take()
                os.chown(self._folder.path, self._user, self._user)
                kept["HOME"] = str(self._folder.path)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._folder.path,
                env={**kept, **variables},
                start_new_session=True,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
            )
        except OSError as e:
            self._clean_up()
            raise AgentFailure(f"the agent {name} does not start: {e}") from e
        except ValueError as e:  # a zero byte, or a key with =
            self._clean_up()
            raise JobFailure(
                f"the agent {name} takes its agent_args as environment variables: {e}"
            ) from e
        guard.watch(self._process.pid, f"{EPISODE_URL}={variables[EPISODE_URL]}")
        self._reader = threading.Thread(target=self._read, name=f"rollq-agent {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        out = self._process.stdout
        assert out is not None, "it is a pipe"
        ready = select.poll()
        ready.register(out, select.POLLIN)
        text_of = codecs.getincrementaldecoder("utf-8")("replace").decode
        with out:
            while not self._stopped.is_set():  # what it left behind may hold the pipe open for ever
                if ready.poll(200):
                    chunk = os.read(out.fileno(), 65536)
                    if not chunk:
                        break
                    self._last.extend(text_of(chunk)[-KEPT_OUTPUT:])
        self._last.extend(text_of(b"", True))
        self._process.wait()
        self._on_end()

    @property
    def output(self) -> str:
        text = "".join(self._last.copy()).rstrip()
        code = self._process.returncode or 0
        return f"{text}\n[ended by signal {-code}]".lstrip() if code < 0 else text

    def ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> str | None:
        code = self._process.wait()
        # for its last words; what it left behind may hold them open for long
        self._reader.join(GRACE_S)
        if not code:
            return None
        is_killed = (-code if code < 0 else code - 128) in KILLING
        failure = AgentKilled if is_killed else AgentFailure
        how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        raise failure(f"the agent {self._name} {how}; its last output:\n{self.output}")

    def stop(self) -> None:
        """Ends its whole process group, and with it its other processes.

        A child that has a session of its own and not the variables goes on, unless the command has
        a user of its own.
        """
        if self._stopped.is_set():  # another process group may have its number
            return
        for number, wait_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        self._stopped.set()
        self._clean_up()

    def _clean_up(self) -> None:
        if self._guard is not None:
            self._guard.close()
        try:
            if self._users is not None and self._user is not None:
                self._users.give_back(self._user)
        except OSError as e:  # there is no room for a process
            log.error("processes of the user of agent %s may go on: %s", self._name, e)
        self._users = None
        self._folder.remove()


def command_of(path: Path) -> list[str]:
    """The command that runs an agent's file."""
    if os.access(path, os.X_OK):
        return [str(path)]
    if path.suffix == ".py":
        return [sys.executable, str(path)]
    return ["/bin/sh", str(path)]
