"""Real processes on loopback: the parts of rollq as a user starts them, ended by pid."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollq import Client
from tests.conftest import free_port
from tests.stalls import Stalls

EXIT_S = 5.0
"""A worker that is told to stop is gone by then."""
CALM_S = 0.5
"""A machine that stood still for no longer shows what a worker promises within seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


class Stack:
    """A Redis, an engine and workers; every process that was started is ended with it."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.engine_url = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """One `rollq` command in the background; its output goes to a file of its own."""
        log = self.folder / f"{len(self.processes)}-{command[0]}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "rollq", *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROLLQ_REDIS_URL": self.redis_url, **(env or {})},
            )
        process.log = log  # type: ignore[attr-defined]
        self.processes.append(process)
        return process

    def engine(self, *flags: str) -> subprocess.Popen[bytes]:
        port = free_port()
        self.engine_url = f"http://127.0.0.1:{port}"
        process = self.start("engine", "--port", str(port), *flags)
        self.wait(lambda: self._ready(process), 150, "the engine")
        return process

    def _ready(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, process.log.read_text()  # type: ignore[attr-defined]
        try:
            with urllib.request.urlopen(f"{self.engine_url}/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def worker(self, concurrency: int = 8, *flags: str, engine_url: str = "") -> subprocess.Popen[bytes]:
        process = self.start("worker", "-c", str(concurrency), "--engine", engine_url or self.engine_url, *flags)
        self.wait(lambda: b"ready" in process.log.read_bytes(), 150, "the worker")  # type: ignore[attr-defined]
        return process

    def run(self, *command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """One `rollq` command in the foreground."""
        return subprocess.run(
            [sys.executable, "-m", "rollq", *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "ROLLQ_REDIS_URL": self.redis_url},
        )

    def stats(self, run: str) -> dict[str, Any]:
        with Client(self.redis_url, run=run) as client:
            return dict(client.stats())

    def wait(self, done: Callable[[], object], timeout_s: float, what: str) -> None:
        until = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < until, f"{what}: not within {timeout_s} s\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-2000:]}" for p in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
            process.wait(60)


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> bool:
    """Signal a worker; it must be gone within EXIT_S, and the time that the machine stood still.

    Returns whether it did not, so that everything else that a worker does in that time can be asked for.
    """
    with Stalls() as stalls:
        start = time.monotonic()
        process.send_signal(number)
        assert process.wait(60) == 0
        took = time.monotonic() - start
    print(f"gone after {took:.2f} s")
    assert took < EXIT_S + stalls.seconds
    return stalls.seconds < CALM_S


@pytest.fixture
def stack(tmp_path: Path, redis_url: str) -> Iterator[Stack]:
    stack = Stack(tmp_path, redis_url)
    yield stack
    stack.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
