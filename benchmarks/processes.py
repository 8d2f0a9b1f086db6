"""Redis, the replay engine and workers for the benchmarks, each a real child process on loopback.

Leaving the context ends every child by its pid. This module measures nothing.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rollq.processes.child import Child
from rollq.processes.embedded_redis import EmbeddedRedis

ROLLQ = ("-m", "rollq")
START_S = 180.0
"""Seconds for a child to become ready. Libraries and data may have to come from a cold disk."""


class Processes:
    """The running children, and a folder for their logs."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="rollq-bench-")
        self.folder = Path(self._scratch.name)
        self._children: list[Child] = []
        self._redis: list[EmbeddedRedis] = []

    def redis(self) -> str:
        """Starts an empty Redis. Returns its address."""
        self._redis.append(EmbeddedRedis())
        return self._redis[-1].url

    def engine(self, env: str, tokenizer: str | None, latency_s: float = 0.0) -> str:
        """Starts a replay engine that makes no mistakes. Returns its address."""
        flags = ["--port", "0", "--env", env, "--latency", f"{latency_s}", "--mistakes", "0"]
        child = self.start("engine", ["-m", "rollq", "engine", *flags, *_tokenizer(tokenizer)])
        return self.wait_for_line(child, "rollq engine: ready at ").split()[-1]

    def worker(
        self,
        redis_url: str,
        engine_url: str,
        concurrency: int,
        tokenizer: str | None,
        *,
        rollq: Sequence[str] = ROLLQ,
        processes: int = 1,
    ) -> Child:
        """Starts a worker. Returns once all its processes claim jobs."""
        flags = [
            "--redis",
            redis_url,
            "--broker",
            redis_url,
            "--engine",
            engine_url,
            "-c",
            str(concurrency),
            "--processes",
            str(processes),
        ]
        child = self.start("worker", [*rollq, "worker", *flags, *_tokenizer(tokenizer)])
        self.wait_for_line(child, ": ready, ", nth=processes)
        return child

    def start(self, name: str, words: Sequence[str]) -> Child:
        """Starts a Python process that imports the same rollq as this one."""
        log = self.folder / f"{name}-{len(self._children)}.log"
        child = Child(name, [sys.executable, *words], log=log, env=self.environment())
        self._children.append(child)
        return child

    def environment(self) -> dict[str, str]:
        """The variables of a child that imports the same rollq as this process."""
        path = os.pathsep.join([p for p in sys.path if p] + [os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}

    def wait_for_line(
        self, child: Child, text: str, timeout_s: float = START_S, nth: int = 1
    ) -> str:
        """Waits for the nth line with `text` in a child's output. Exits when the child ends."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = child.exit_code is not None  # before reading: its last words count
            lines = child.log.read_text(errors="replace").splitlines()
            found = [line for line in lines if text in line]
            if len(found) >= nth:
                return found[nth - 1]
            if ended or time.monotonic() > deadline:
                sys.exit(f"waited for {text!r}\n{child.how_it_ended()}")
            time.sleep(0.05)

    def stop(self) -> None:
        for child in reversed(self._children):
            child.stop()
        for server in self._redis:
            server.stop()
        self._scratch.cleanup()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _tokenizer(where: str | None) -> list[str]:
    return ["--tokenizer", where] if where else []
