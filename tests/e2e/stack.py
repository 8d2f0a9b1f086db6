"""The parts of rollq as a user starts them, as real processes on loopback, and what a complete run
must show.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollq import Client, Job
from tests.conftest import free_port
from tests.stalls import Stalls

EXIT_S = 5.0
"""A worker exits within this time of a signal."""
CALM_S = 0.5
"""A machine that stalled for longer proves nothing about promises within seconds."""
FAULTY_SHOP = {
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parent / "site"), os.environ.get("PYTHONPATH", "")]
    )
}
"""The environment variables of a worker that has the environment `faulty` (site/rollq_faulty.py).
"""


class Stack:
    """A Redis, an engine and workers; `close` ends every process that was started."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.engine_url = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *command: str, env: dict[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """One `rollq` command in the background, in that folder; its output goes to a file of its
        own.
        """
        log = self.folder / f"{len(self.processes)}-{command[0]}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "rollq", *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
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

    def worker(
        self, concurrency: int = 8, *flags: str, engine_url: str = ""
    ) -> subprocess.Popen[bytes]:
        process = self.start(
            "worker", "-c", str(concurrency), "--engine", engine_url or self.engine_url, *flags
        )
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
        return "\n".join(
            f"== {p.name}\n{p.read_text()[-2000:]}" for p in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
            process.wait(60)


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> bool:
    """Signal a worker, which must exit within EXIT_S and the time that the machine stalled.

    Returns whether the machine was calm and not busy: only then can a test demand what else a
    worker does meanwhile.
    """
    with Stalls() as stalls:
        start = time.monotonic()
        process.send_signal(number)
        assert process.wait(60) == 0
        took = time.monotonic() - start
    print(f"gone after {took:.2f} s")
    assert took < EXIT_S + stalls.seconds
    return stalls.seconds < CALM_S and os.getloadavg()[0] < 2 * (os.cpu_count() or 1)


GROUPS, SIZE = 6, 4
JOBS = GROUPS * SIZE


def submit_groups(stack: Stack, run: str, **job) -> None:
    """Submit GROUPS groups of SIZE jobs, and seal the run."""
    with Client(stack.redis_url, run=run) as client:
        client.submit([Job(env="shop", task=i, size=SIZE, **job) for i in range(GROUPS)])
        client.seal()


def submit_singles(stack: Stack, run: str, jobs: int, *, first: int = 0, **job: Any) -> None:
    """Submit groups of one job, named `g<task>`."""
    with Client(stack.redis_url, run=run) as client:
        for task in range(first, first + jobs):
            client.submit(
                [Job(**{"env": "shop", "task": task, "group": f"g{task}", **job})], ahead=1000
            )


def collect(stack: Stack, run: str) -> list[str]:
    """Take and acknowledge everything. Returns the ids received, in order."""
    received = []
    with Client(stack.redis_url, run=run) as client:
        for batch in client.batches(groups=2, timeout=150):
            received += [t.job.id for t in batch.trajectories]
            batch.ack()
    return received


def check_all_delivered(stack: Stack, run: str, jobs: int) -> dict[str, Any]:
    """Seal the run and check that every job is done and delivered once. Returns the run's stats."""
    with Client(stack.redis_url, run=run) as client:
        client.seal()
    received = collect(stack, run)
    stats = stack.stats(run)
    assert len(received) == len(set(received)) == jobs, f"{stats}\n{stack.logs()}"
    expected = {"submitted": jobs, "done": jobs, "delivered": jobs}
    expected |= dict.fromkeys(("dead", "queued", "leased"), 0)
    assert {name: stats[name] for name in expected} == expected
    return stats


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
