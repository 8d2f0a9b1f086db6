"""One run with everything it needs, each part a real process: what a row breaks.

Every wait is bounded by the row's deadline; every process ends with the scene. Only the commands and the light client
are used, and signals.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rollq import Client
from rollq.children import Child
from rollq.embedded import command as redis_command
from rollq.errors import RollqError
from rollq.export import record
from rollq.keys import QUEUE
from rollq.replies import JobState, State
from tests.chaos.cable import Cable
from tests.chaos.gateway import Gateway

RUN = "chaos"
LEASE_S = 15.0
EXIT_S = 5.0
"""Seconds that a worker has after SIGTERM."""
SLACK_S = 1.0
"""What a machine with more processes than cores may add to a second's bound."""
Held = Sequence[tuple[str, int]]
"""(job, attempt)"""


class Stuck(AssertionError):
    """Something did not happen in time."""


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


class Scene:
    """The processes of one run. Close it."""

    def __init__(self, folder: Path, seed: int, deadline_s: float) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.rng = random.Random(seed)
        self.until = time.monotonic() + deadline_s
        self.faults = 0
        self.recovered_s: list[float] = []
        self.expected: set[str] = set()
        self.journals: dict[str, dict[str, Any]] = {}
        """Done jobs as the ledger had them before anybody took them; empty unless the consumer came last."""
        self.wrong: list[str] = []
        """What a row itself found wrong."""
        self.doomed: set[str] = set()
        """Jobs that are to die; no others may."""
        self.regenerable: int | None = None
        """At most so many turns may have been generated twice; None: this row does not say."""
        self.out = folder / "out.jsonl"
        self.children: list[Child] = []
        self.redis_port, self.engine_port = port(), port()
        self.redis: Child
        self.engine: Child
        self.cable: Cable | None = None
        self.gateway = Gateway(port(), f"http://127.0.0.1:{self.engine_port}")
        self.env = self._environment()
        self.latency = 0.2
        """Mean seconds of a generation; of the engine that is started next."""
        self.consumer: Child | None = None
        self._groups = 0

    # -- the parts

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

    def run(self, *args: str, timeout_s: float = 60.0) -> dict[str, Any]:
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
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def start_redis(self) -> None:
        data = self.folder / "redis"
        data.mkdir(exist_ok=True)
        log = self.folder / f"{len(self.children):02}-redis.log"
        self.redis = Child("redis", redis_command(self.redis_port, data), log=log)
        self.children.append(self.redis)
        self.wait(lambda: "Ready to accept" in self.redis.tail(), "Redis", 20)
        self.client = Client(self.redis_url, run=RUN)

    def start_engine(self, wait: bool = True) -> None:
        self.engine = self.start("engine", "engine", "--port", str(self.engine_port), "--latency", str(self.latency))
        if wait:
            self.await_engine()

    def await_engine(self) -> None:
        self.wait(lambda: "ready at" in self.engine.tail(), "the engine", 60)

    def kill_engine(self) -> None:
        os.kill(self.engine.pid, signal.SIGKILL)
        self.gateway.down()

    def restart_engine(self) -> None:
        self.start_engine()
        self.gateway.up()

    def worker(self, concurrency: int = 8, *, wait: bool = True, env: dict[str, str] | None = None) -> Child:
        child = self.start("worker", "worker", "-c", str(concurrency), env=env)
        if wait:
            self.await_worker(child)
        return child

    def await_worker(self, child: Child) -> None:
        self.wait(lambda: ": ready" in child.log.read_text(errors="replace"), "the worker", 60)

    # -- the run

    def submit(self, tasks: int = 8, size: int = 3, *flags: str, env: str = "shop") -> None:
        """Submits the whole run and seals it."""
        self.expect(env, range(tasks), size)
        self.run(*self.line(0, tasks - 1, size, *flags, "--seal", env=env))

    def line(self, first: int, last: int, size: int, *flags: str, env: str = "shop") -> list[str]:
        """`rollq submit` for these tasks."""
        line = ["submit", "--run", RUN, "--env", env, "--tasks", f"{first}-{last}", "--size", str(size)]
        return [*line, *flags]

    def expect(self, env: str, tasks: Iterable[int], size: int) -> None:
        self.expected |= {f"{RUN}/{env}.train.{task}/{sample}" for task in tasks for sample in range(size)}

    def stats(self) -> dict[str, Any]:
        return self.client.stats()

    def consume(self, groups: int = 100_000) -> Child:
        """`rollq pull` in the background, into the file, for so many groups; started again whenever it has them."""
        self._groups = groups
        line = ["pull", "--run", RUN, "--groups", str(groups), "--out", str(self.out), "--json"]
        self.consumer = self.start("pull", *line)
        return self.consumer

    def settle(self) -> None:
        """Waits until everything has ended and is delivered."""
        self.wait(lambda: self.ended() >= len(self.expected), "the end of all jobs")
        if self.consumer is None:
            self.journals = {job: found for job in sorted(self.expected) if (found := self._journal(job))}
            stats = self.stats()
            readable = stats["done"] - stats["delivered"]
            self.check(len(self.journals) == readable, f"{len(self.journals)} journals of {readable} jobs can be read")
        if self.consumer is None or self.consumer.exit_code is not None:
            self.consume()
        self.wait(self._delivered, "the delivery of all groups")

    def state(self, job: str) -> JobState | None:
        """None for an unknown job, and for one whose record cannot be read."""
        try:
            return self.client.ledger.job(job)
        except RollqError:
            return None

    def ended(self) -> int:
        stats = self.stats()
        return int(stats["done"] + stats["dead"])

    def _journal(self, job: str) -> dict[str, Any] | None:
        state = self.state(job)
        return record(self.client.trajectory(job)) if state and state.state is State.DONE and state.journal else None

    def _delivered(self) -> bool:
        stats = self.stats()
        left = stats["groups_open"] + stats["groups_ready"] + stats["groups_held"]
        return not left and self.consumer is not None and self.consumer.exit_code is not None

    # -- faults

    def kill(self, child: Child, number: int = signal.SIGKILL) -> None:
        os.kill(child.pid, number)
        self.faults += 1

    def held_by(self, worker: Child) -> Held:
        """What this worker is playing."""
        held = []
        for job in self.expected:
            state = self.state(job)
            if state and state.state is State.LEASED and state.worker.endswith(f"-{worker.pid}"):
                held.append((job, state.attempt))
        return held

    def await_some(self, worker: Child, least: int = 4) -> Held:
        """Waits until this worker plays at least so many jobs, and returns them."""
        found: list[Held] = [()]

        def enough() -> bool:
            found[0] = self.held_by(worker)
            return len(found[0]) >= least

        self.wait(enough, f"{least} jobs of one worker", 60)
        return found[0]

    def taken_over(self, held: Held) -> bool:
        """Whether others play all of these, or they have ended."""
        return all(self._moved(job, attempt, (State.LEASED, State.DONE, State.DEAD)) for job, attempt in held)

    def given_back(self, held: Held) -> bool:
        """Whether none of these is held under its old attempt any more."""
        return all(self._moved(job, attempt, tuple(State)) for job, attempt in held)

    def _moved(self, job: str, attempt: int, states: Sequence[State]) -> bool:
        state = self.client.job(job)
        if state.attempt > attempt:
            return state.state in states
        return state.state in (State.DONE, State.DEAD) or (state.state is State.QUEUED and State.QUEUED in states)

    def progress(self) -> Callable[[], bool]:
        """Whether a job has ended or a turn was generated since now."""
        answered, ended = self.gateway.answered, self.ended()
        return lambda: self.gateway.answered > answered + 2 or self.ended() > ended or ended >= len(self.expected)

    def recover(self, done: Callable[[], bool], what: str, within_s: float = 60.0, since: float = 0.0) -> None:
        """Waits for it and notes how long it took, since then (monotonic) or now."""
        start = since or time.monotonic()
        self.wait(done, what, within_s)
        self.recovered_s.append(time.monotonic() - start)

    def wait(self, done: Callable[[], bool], what: str, within_s: float = 1e9) -> None:
        until = min(self.until, time.monotonic() + within_s)
        while not done():
            if self.consumer is not None and self.consumer.exit_code == 0:
                self.consume(self._groups)
            if time.monotonic() > until:
                raise Stuck(f"{what}: not in time")
            time.sleep(0.1)

    def cost_nothing(self) -> None:
        """Waits for the end of all jobs, and finds it wrong if one of them has paid for an outage."""
        self.wait(lambda: self.ended() >= len(self.expected), "the end of all jobs")
        failures = self.stats()["failures"]
        self.check(not failures, f"an outage cost budget: {failures}")

    def check(self, good: bool, otherwise: str) -> None:
        if not good:
            self.wrong.append(otherwise)

    def engine_post(self, path: str, **body: Any) -> None:
        """A call to the engine itself, as a trainer makes it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.engine_port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def broker(self) -> Any:
        """The queue's Redis and its name."""
        return self.client.ledger.redis, QUEUE

    def later(self, seconds: float, act: Callable[[], object]) -> threading.Timer:
        """Does it after a while, from another thread (no process may be started there)."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()
        return timer

    # -- the end

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
        return {
            "ROLLQ_REDIS_URL": self.redis_url,
            "ROLLQ_BROKER_URL": "",
            "ROLLQ_ENGINE_URL": self.gateway.url,
            "ROLLQ_USER_ENDPOINTS": f"user={self.gateway.url}/v1",
            "ROLLQ_TOKENIZER": "",
            "PYTHONPATH": os.pathsep.join([str(packages), *filter(None, sys.path), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
            "CHAOS_MISCHIEF": str(self.mischief),
        }
