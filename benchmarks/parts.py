"""What the benchmarks run beside themselves: Redis, the replay engine, workers, each a real child process on loopback.

Leaving the context ends every child by its pid. It measures nothing.
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

START_S = 180.0
"""For a child to say that it is ready: a cold disk reads its libraries and its data in that time, and more."""


class Parts:
    """The running children, and a folder for their logs."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="rollq-bench-")
        self.folder = Path(self._scratch.name)
        self._children: list[Child] = []
        self._redis: EmbeddedRedis | None = None

    def redis(self) -> str:
        """The address of a fresh Redis."""
        self._redis = EmbeddedRedis()
        return self._redis.url

    def engine(self, env: str, tokenizer: str | None) -> str:
        """The address of a replay engine that answers at once and makes no mistakes."""
        flags = ["--port", "0", "--env", env, "--latency", "0", "--mistakes", "0"]
        child = self.start("engine", ["-m", "rollq", "engine", *flags, *_tokenizer(tokenizer)])
        return self.line(child, "rollq engine: ready at ").split()[-1]

    def worker(self, redis_url: str, engine_url: str, concurrency: int, tokenizer: str | None) -> Child:
        """One worker process, ready to claim jobs."""
        flags = ["--redis", redis_url, "--broker", redis_url, "--engine", engine_url, "-c", str(concurrency)]
        child = self.start("worker", ["-m", "rollq", "worker", *flags, *_tokenizer(tokenizer)])
        self.line(child, ": ready, ")
        return child

    def start(self, name: str, words: Sequence[str]) -> Child:
        """A Python process that finds the same rollq as this one."""
        path = os.pathsep.join([p for p in sys.path if p] + [os.environ.get("PYTHONPATH", "")])
        kept = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        log = self.folder / f"{name}-{len(self._children)}.log"
        child = Child(name, [sys.executable, *words], log=log, env=kept)
        self._children.append(child)
        return child

    def line(self, child: Child, text: str, timeout_s: float = START_S) -> str:
        """The line of a child's output that holds `text`, once it is there. Ends the process when the child ends."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = child.exit_code is not None  # before the look: what it said last counts
            for line in child.log.read_text(errors="replace").splitlines():
                if text in line:
                    return line
            if ended or time.monotonic() > deadline:
                sys.exit(f"waited for {text!r}\n{child.obituary()}")
            time.sleep(0.05)

    def stop(self) -> None:
        for child in reversed(self._children):
            child.stop()
        if self._redis:
            self._redis.stop()
        self._scratch.cleanup()

    def __enter__(self) -> "Parts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _tokenizer(where: str | None) -> list[str]:
    return ["--tokenizer", where] if where else []
