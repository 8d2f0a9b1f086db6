"""The processes of one run: Redis, engine, workers and whatever a row starts beside them, all on loopback.

Every wait is bounded by one deadline, and every process ends with `close`. It knows nothing of jobs.
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
from tests.chaos.cable import Cable
from tests.chaos.gateway import Gateway

RUN = "chaos"


class Stuck(AssertionError):
    """Something did not happen in time."""


class Skip(Exception):
    """This machine lacks what the fault needs."""


def port() -> int:
    """A free port below those that the kernel gives to outgoing connections: a restarted server finds it free again."""
    while True:
        number = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", number))
                return number
            except OSError:
                continue


class Parts:
    """What is running. Close it."""

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.until = time.monotonic() + deadline_s
        self.children: list[Child] = []
        self.redis_port, self.engine_port = port(), port()
        self.redis: Child
        self.engine: Child
        self.client: Client
        self.cable: Cable | None = None
        self.redis_env: dict[str, str] = {}
        self.gateway = Gateway(port(), f"http://127.0.0.1:{self.engine_port}")
        self.env = self._environment()
        self.latency = 0.2
        """Mean seconds of a generation; of the engine that is started next."""

    @property
    def redis_url(self) -> str:
        """Straight to the server, for the account."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    def open(self, *, latency: float = 0.2, cable: bool = False, workers: Sequence[int] = (8,)) -> list[Child]:
        """Starts Redis, the engine and the workers; returns the workers, ready."""
        self.start_redis()
        if cable:
            self.cable = Cable(port(), self.redis_port)
            self.env["ROLLQ_REDIS_URL"] = self.cable.url
        self.latency = latency
        self.start_engine(wait=False)
        children = [self.worker(concurrency, wait=False) for concurrency in workers]
        self.await_engine()
        for child in children:
            self.await_worker(child)
        return children

    def start(self, name: str, *args: str, module: str = "rollq", env: dict[str, str] | None = None) -> Child:
        """A command in the background."""
        log = self.folder / f"{len(self.children):02}-{name}.log"
        child = Child(name, [sys.executable, "-m", module, *args], log=log, env={**self.env, **(env or {})})
        self.children.append(child)
        return child

    def run(self, *args: str, timeout_s: float = 60.0) -> Any:
        """A command in the foreground; returns its JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "rollq", *args, "--json"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **self.env},
        )
        if done.returncode:
            raise Stuck(f"rollq {' '.join(args)}: exit code {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])

    def start_redis(self) -> None:
        line = ["redis", "--port", str(self.redis_port), "--dir", str(self.folder / "redis")]
        self.redis = self.start("redis", *line, env=self.redis_env)
        self.wait(lambda: "Ready to accept" in self.redis.tail(), "Redis", 60)
        if hasattr(self, "client"):
            self.client.close()
        self.client = Client(self.redis_url, run=RUN)

    def start_engine(self, wait: bool = True) -> None:
        self.engine = self.start("engine", "engine", "--port", str(self.engine_port), "--latency", str(self.latency))
        if wait:
            self.await_engine()

    def await_engine(self) -> None:
        self.wait(lambda: "ready at" in self.engine.tail(), "the engine", 120)

    def kill_engine(self) -> None:
        os.kill(self.engine.pid, signal.SIGKILL)
        self.gateway.down()

    def restart_engine(self) -> None:
        self.start_engine()
        self.gateway.up()

    def loosen_clock(self) -> Path:
        """Before Redis starts: its clock is ahead by the seconds that the file says which is returned.

        Raises Skip where the few lines of C that this takes cannot be built or preloaded.
        """
        at, library = self.folder / "clock", self.folder / "clock.so"
        at.write_text("0")
        cc = shutil.which("cc")
        if sys.platform != "linux" or cc is None:
            raise Skip("needs Linux and a C compiler (cc) to set the clock of one process")
        line = [cc, "-shared", "-fPIC", "-O1", "-o", str(library), str(Path(__file__).with_name("clock.c"))]
        subprocess.run(line, check=True, timeout=60)
        self.redis_env = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(at)}
        return at

    def worker(self, concurrency: int = 8, *, wait: bool = True, env: dict[str, str] | None = None) -> Child:
        child = self.start("worker", "worker", "-c", str(concurrency), env=env)
        if wait:
            self.await_worker(child)
        return child

    def await_worker(self, child: Child) -> None:
        self.wait(lambda: ": ready" in child.log.read_text(errors="replace"), "the worker", 120)

    def engine_post(self, path: str, **body: Any) -> None:
        """A call to the engine itself, as a trainer makes it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.engine_port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def wait(self, done: Callable[[], bool], what: str, within_s: float = 1e9) -> None:
        until = min(self.until, time.monotonic() + within_s)
        while not done():
            self.tend()
            if time.monotonic() > until:
                raise Stuck(f"{what}: not in time")
            time.sleep(0.1)

    def tend(self) -> None:
        """Done again and again while something is waited for."""

    def close(self) -> None:
        for child in reversed(self.children):
            if child.exit_code is None:
                os.kill(child.pid, signal.SIGCONT)
                os.kill(child.pid, signal.SIGKILL)
            child.stop(5)
        if hasattr(self, "client"):
            self.client.close()
        if self.cable:
            self.cable.close()
        self.gateway.close()

    def _environment(self) -> dict[str, str]:
        """Addresses, and a folder of packages: the environment `chaos` and the wrong clock."""
        packages = self.folder / "site"
        shutil.copytree(Path(__file__).parent / "site", packages, dirs_exist_ok=True)
        info = packages / "rollq_chaos-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollq-chaos\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[rollq.environments]\nchaos = rollq_chaos:load\n")
        self.mischief = self.folder / "mischief"
        self.mischief.mkdir(exist_ok=True)
        self.mischief_done = self.folder / "mischief-done"
        self.mischief_done.mkdir(exist_ok=True)
        self.skewed = self.folder / "skewed"
        return {
            "ROLLQ_REDIS_URL": self.redis_url,
            "ROLLQ_BROKER_URL": "",
            "ROLLQ_ENGINE_URL": self.gateway.url,
            "ROLLQ_USER_ENDPOINTS": f"user={self.gateway.url}/v1",
            "ROLLQ_TOKENIZER": "",
            "PYTHONPATH": os.pathsep.join([str(packages), *filter(None, sys.path), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
            "CHAOS_MISCHIEF": str(self.mischief),
            "CHAOS_DONE": str(self.mischief_done),
            "CHAOS_SKEWED": str(self.skewed),
        }
