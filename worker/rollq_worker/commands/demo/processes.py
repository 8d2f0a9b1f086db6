"""The processes of a demo: Redis, the replay engine and one worker, each a real child process.

A process that ends early ends the demo, with its last lines of output. It knows how the processes
are started, not what they do.
"""

import os
import re
import socket
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

from rollq.errors import RollqError
from rollq.processes.child import Child
from rollq.processes.embedded_redis import EmbeddedRedis
from rollq.urls import mask_url

ENGINE_READY = re.compile(r"rollq engine: ready at (\S+)")
WORKER_READY = re.compile(r"rollq worker \S+: ready")
START_S = 300.0
"""Longest start of a process in seconds. A cold disk takes less to read a tokenizer library and an
environment's data.
"""


class DemoProcesses:
    """The running processes. Leaving the context stops them, the worker first."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._scratch = tempfile.TemporaryDirectory(prefix="rollq-demo-")
        self.folder = Path(self._scratch.name)
        self.redis_url = self.engine_url = ""
        self._redis: EmbeddedRedis | None = None
        self._children: list[Child] = []

    def start_redis(self) -> None:
        self._redis = EmbeddedRedis()
        self.redis_url = self._redis.url
        self._say(f"redis    {self.redis_url}  (embedded, pid {self._redis.child.pid})")

    def use_engine(self, url: str) -> None:
        """Uses an engine that runs already. Raises RollqError when no server listens there."""
        self.engine_url = url
        parts = urllib.parse.urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=5.0).close()
        except OSError as e:
            raise RollqError(
                f"no engine listens at {mask_url(url)}: {e} (without --engine, the demo starts one)"
            ) from e
        self._say(f"engine   {mask_url(url)}")

    def start_engine(self, flags: Sequence[str]) -> None:
        """Starts the replay engine on a free port. `await_engine` waits until it is up."""
        self._start("engine", ["engine", "--port", "0", *flags])
        self._say("engine   loading the tasks to replay ...")

    def await_engine(self) -> None:
        """Returns once the replay engine, if one was started, is up. Raises RollqError when it does
        not start.
        """
        for child in self._children:
            self.engine_url = _await(child, ENGINE_READY)[1]
            self._say(f"engine   {self.engine_url}  (replay, pid {child.pid})")

    def start_worker(
        self, concurrency: int, tokenizer: str | None = None, model_engines: str = ""
    ) -> None:
        """Returns once the worker takes jobs. `model_engines` as in ROLLQ_MODEL_ENGINES. Raises
        RollqError when it does not start.
        """
        redis = self.redis_url
        env = {
            "ROLLQ_REDIS_URL": redis,
            "ROLLQ_BROKER_URL": redis,
            "ROLLQ_ENGINE_URL": self.engine_url,
            "ROLLQ_MODEL_ENGINES": model_engines,
        }
        flags = ["--tokenizer", tokenizer] if tokenizer else []
        line = ["worker", "--processes", "1", "--concurrency", str(concurrency), *flags]
        child = self._start("worker", line, env)
        self._say(f"worker   pid {child.pid}, {concurrency} episodes at once")
        _await(child, WORKER_READY)

    def check(self) -> None:
        """Raises RollqError, with the last lines of output, when a process has ended."""
        for child in (*self._children, *([self._redis.child] if self._redis else [])):
            if child.exit_code is not None:
                raise RollqError(child.how_it_ended())

    def last_output(self) -> str:
        return "\n".join(
            f"last lines of the {c.name}:\n{c.tail()}" for c in reversed(self._children) if c.tail()
        )

    def stop(self) -> None:
        """Stops the worker first, because it gives its jobs back. Safe to repeat."""
        try:
            for child in reversed(self._children):
                child.stop()
        finally:
            if self._redis:
                self._redis.stop()
            self._scratch.cleanup()

    def _start(self, name: str, args: Sequence[str], env: dict[str, str] | None = None) -> Child:
        # The children import the same rollq as this process.
        path = os.pathsep.join([p for p in sys.path if p] + [os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "rollq", *args]
        log = self.folder / f"{name}-{len(self._children)}.log"
        child = Child(
            name, command, log=log, env={"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})}
        )
        self._children.append(child)
        return child

    def __enter__(self) -> "DemoProcesses":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _await(child: Child, ready: re.Pattern[str]) -> re.Match[str]:
    """The words of a process that is ready. Raises RollqError when it does not start."""
    deadline = time.monotonic() + START_S
    while not (match := ready.search(child.tail())):
        if child.exit_code is not None or time.monotonic() > deadline:
            child.stop()
            raise RollqError(child.how_it_ended())
        time.sleep(0.02)
    return match
