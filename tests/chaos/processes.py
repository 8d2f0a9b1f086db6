"""The processes of one run, all on loopback: Redis, engine, workers, and what a row starts beside
them.

One deadline bounds every wait, and `close` ends every process. This module knows nothing of jobs.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollq import Client
from rollq.processes.child import Child
from tests.chaos.engine_proxy import EngineProxy
from tests.chaos.redis_proxy import RedisProxy

RUN = "chaos"


class TimedOut(AssertionError):
    """Something did not happen in time."""


class Skip(Exception):
    """This machine lacks what the fault needs."""


def free_port() -> int:
    """A free port below the range of outgoing connections, so that a restarted server finds it free
    again.
    """
    while True:
        number = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", number))
                return number
            except OSError:
                continue


class Processes:
    """Everything that runs. Must be closed."""

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.until = time.monotonic() + deadline_s
        self.children: list[Child] = []
        self.redis_port, self.engine_port = free_port(), free_port()
        self.redis: Child
        self.engine: Child
        self.client: Client
        self.redis_proxy: RedisProxy | None = None
        self.redis_env: dict[str, str] = {}
        self.engine_proxy = EngineProxy(free_port(), f"http://127.0.0.1:{self.engine_port}")
        self.env = self._environment()
        self.latency = 0.2
        """Mean seconds of a generation, for the next engine that is started."""

    @property
    def redis_url(self) -> str:
        """The server itself, without the proxy."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    def start_processes(
        self, *, latency: float = 0.2, redis_proxy: bool = False, workers: Sequence[int] = (8,)
    ) -> list[Child]:
        """Start Redis, the engine and the workers. Returns the workers once they are ready."""
        self.start_redis()
        if redis_proxy:
            self.redis_proxy = RedisProxy(free_port(), self.redis_port)
            self.env["ROLLQ_REDIS_URL"] = self.redis_proxy.url
        self.latency = latency
        self.start_engine(wait=False)
        children = [self.start_worker(concurrency, wait=False) for concurrency in workers]
        self.wait_for_engine()
        for child in children:
            self.wait_for_worker(child)
        return children

    def start_command(
        self, name: str, *args: str, module: str = "rollq", env: dict[str, str] | None = None
    ) -> Child:
        """Start a command in the background."""
        log = self.folder / f"{len(self.children):02}-{name}.log"
        child = Child(
            name, [sys.executable, "-m", module, *args], log=log, env={**self.env, **(env or {})}
        )
        self.children.append(child)
        return child

    def run_command(self, *args: str, timeout_s: float = 60.0) -> Any:
        """Run a command in the foreground. Returns its JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "rollq", *args, "--json"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **self.env},
        )
        if done.returncode:
            raise TimedOut(
                f"rollq {' '.join(args)}: exit code {done.returncode}: {done.stderr.strip()}"
            )
        return json.loads(done.stdout.splitlines()[-1])

    def start_redis(self) -> None:
        line = ["redis", "--port", str(self.redis_port), "--dir", str(self.folder / "redis")]
        self.redis = self.start_command("redis", *line, env=self.redis_env)
        self.wait(lambda: "Ready to accept" in self.redis.tail(), "Redis", 60)
        if hasattr(self, "client"):
            self.client.close()
        self.client = Client(self.redis_url, run=RUN)

    def start_engine(self, wait: bool = True) -> None:
        self.engine = self.start_command(
            "engine", "engine", "--port", str(self.engine_port), "--latency", str(self.latency)
        )
        if wait:
            self.wait_for_engine()

    def wait_for_engine(self) -> None:
        self.wait(lambda: "ready at" in self.engine.tail(), "the engine", 120)

    def kill_engine(self) -> None:
        os.kill(self.engine.pid, signal.SIGKILL)
        self.engine_proxy.refuse()

    def restart_engine(self) -> None:
        self.start_engine()
        self.engine_proxy.listen()

    def make_clock_settable(self) -> Path:
        """Call it before Redis starts. Returns a file: Redis's clock is ahead by the number of
        seconds in it.

        Raises Skip where the library that this needs cannot be built or preloaded.
        """
        at, library = self.folder / "clock", self.folder / "clock.so"
        at.write_text("0")
        cc = shutil.which("cc")
        if sys.platform != "linux" or cc is None:
            raise Skip("needs Linux and a C compiler (cc) to set the clock of one process")
        line = [
            cc,
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(library),
            str(Path(__file__).with_name("shifted_clock.c")),
        ]
        subprocess.run(line, check=True, timeout=60)
        self.redis_env = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(at)}
        return at

    def start_worker(
        self, concurrency: int = 8, *, wait: bool = True, env: dict[str, str] | None = None
    ) -> Child:
        child = self.start_command("worker", "worker", "-c", str(concurrency), env=env)
        if wait:
            self.wait_for_worker(child)
        return child

    def wait_for_worker(self, child: Child) -> None:
        self.wait(lambda: ": ready" in child.log.read_text(errors="replace"), "the worker", 120)

    def engine_post(self, path: str, **body: Any) -> None:
        """Call the engine itself, as a trainer does."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.engine_port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def wait(self, done: Callable[[], bool], what: str, within_s: float = 1e9) -> None:
        until = min(self.until, time.monotonic() + within_s)
        while not done():
            self.keep_running()
            if time.monotonic() > until:
                raise TimedOut(f"{what}: not in time")
            time.sleep(0.1)

    def keep_running(self) -> None:
        """Called repeatedly during every wait."""

    def close(self) -> None:
        for child in reversed(self.children):
            if child.exit_code is None:
                os.kill(child.pid, signal.SIGCONT)
                os.kill(child.pid, signal.SIGKILL)
            child.stop(5)
        if hasattr(self, "client"):
            self.client.close()
        if self.redis_proxy:
            self.redis_proxy.close()
        self.engine_proxy.close()

    def _environment(self) -> dict[str, str]:
        """Addresses, and a folder of packages: the environment `chaos`, and the worker's wrong
        clock.
        """
        packages = self.folder / "site"
        shutil.copytree(Path(__file__).parent / "site", packages, dirs_exist_ok=True)
        info = packages / "rollq_chaos-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollq-chaos\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[rollq.environments]\nchaos = rollq_chaos:load\n")
        self.faults_ordered = self.folder / "faults-ordered"
        self.faults_ordered.mkdir(exist_ok=True)
        self.faults_done = self.folder / "faults-done"
        self.faults_done.mkdir(exist_ok=True)
        self.clock_jumps = self.folder / "clock-jumps"
        return {
            "ROLLQ_REDIS_URL": self.redis_url,
            "ROLLQ_BROKER_URL": "",
            "ROLLQ_ENGINE_URL": self.engine_proxy.url,
            "ROLLQ_USER_ENDPOINTS": f"user={self.engine_proxy.url}/v1",
            "ROLLQ_TOKENIZER": "",
            "PYTHONPATH": os.pathsep.join(
                [str(packages), *filter(None, sys.path), os.environ.get("PYTHONPATH", "")]
            ),
            "PYTHONUNBUFFERED": "1",
            "CHAOS_FAULTS_ORDERED": str(self.faults_ordered),
            "CHAOS_FAULTS_DONE": str(self.faults_done),
            "CHAOS_CLOCK_JUMPS": str(self.clock_jumps),
        }
