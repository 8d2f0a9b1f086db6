"""Redis, the replay engine and workers as real processes that play real rollouts, and what the system says they used.

It needs Linux (/proc, see `few_cores`), and no GPU: the replay engine plays the engine's part.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollq.batch import Batch
from rollq.client.celery_publisher import Publisher
from rollq.client.client import Client
from rollq.client.consumer import Consumer
from rollq.errors import PullTimeout, RollqError, SettingsError
from rollq.job import Budget, Job
from rollq.ledger.constants import NEW
from rollq.ledger.replies import Publication
from rollq.processes.child import Child
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.commands.environment_names import load_domain
from rollq_worker.simulation.costs.real_ledger import Meter
from rollq_worker.simulation.fleet.traces import Episode, episode

SPLIT = "train"
SIZE = 4
TASKS = 16
"""Tasks that are played, again and again, so that every part of a run has the same mix."""
MAX_TURNS = 30
CORES = 2
"""Cores that the processes share while costs are measured, so that a replay engine, which uses one core, and a few
workers fill them on any machine."""
TIMEOUT_S = 300.0
CHECK_EVERY_S = 20.0
"""Seconds between two checks that no process has ended."""
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Used:
    """Sums since the processes started: seconds of CPU and calls of scripts. The bytes in Redis are those of now."""

    at: float
    workers_s: float
    engine_s: float
    redis_s: float
    client_s: float
    bytes: float
    scripts: int
    others_s: float
    """CPU of programs that are no part of this. Only differences mean something."""

    def others(self, since: Used) -> float:
        """Cores that other programs used."""
        return max(0.0, self.others_s - since.others_s) / (self.at - since.at)


@dataclass(frozen=True, slots=True)
class Played:
    """What some rollouts took, from an idle worker to an idle worker."""

    episodes: Sequence[Episode]
    wall_s: float
    workers_s: float
    engine_s: float
    redis_s: float
    client_s: float
    """CPU of this process while it submitted."""
    bytes: float
    """What Redis kept of them."""
    others: float
    """Cores that programs used which are no part of this."""

    @property
    def rollouts(self) -> int:
        return len(self.episodes)

    @property
    def turns(self) -> int:
        return sum(len(one.turns) for one in self.episodes)

    @property
    def own_tokens(self) -> int:
        """Tokens that a sample does not share with its group."""
        return sum(one.tokens - one.prompt for one in self.episodes)


def together(runs: Sequence[Played]) -> Played:
    """Several runs as one."""
    wall_s = sum(one.wall_s for one in runs)
    return Played(
        [episode for one in runs for episode in one.episodes],
        wall_s,
        sum(one.workers_s for one in runs),
        sum(one.engine_s for one in runs),
        sum(one.redis_s for one in runs),
        sum(one.client_s for one in runs),
        sum(one.bytes for one in runs),
        sum(one.others * one.wall_s for one in runs) / wall_s,
    )


@dataclass(frozen=True, slots=True)
class Steady:
    """What workers did while all their slots were full, and rollouts came and went."""

    episodes: Sequence[Episode]
    rollouts_a_s: float
    worker_s: float
    """CPU of all workers, of Redis and of the engine for a rollout."""
    redis_s: float
    engine_s: float
    client_s: float
    """CPU of this process, which submits and consumes, for a rollout."""
    scripts: float
    """Calls of the ledger's scripts for a rollout."""
    others: float
    """Cores that programs used which are no part of this."""

    @property
    def rollouts(self) -> int:
        return len(self.episodes)

    @property
    def turns(self) -> int:
        return sum(len(one.turns) for one in self.episodes)

    @property
    def engine_turn_s(self) -> float:
        return self.engine_s * self.rollouts / self.turns


class Site(DemoProcesses):
    """The processes. Leaving the context ends them."""

    def __init__(self, env: str, latency_s: float, tokenizer: str | None, beside: Site | None = None) -> None:
        """With `beside`, it uses that site's engine, whose latency it takes."""
        super().__init__(_quiet)
        self.env, self._tokenizer = env, tokenizer
        self._tasks = min(TASKS, load_domain(env, "simulate").splits()[SPLIT])
        flags = ["--tokenizer", tokenizer] if tokenizer else []
        self.start_redis()
        if beside:
            self.engine_url = beside.engine_url
        else:
            self.start_engine(["--env", env, "--latency", str(latency_s), *flags])
        self.engine: Child = beside.engine if beside else self._children[0]
        self.workers: list[Child] = []
        self._meter = Meter(self.redis_url)
        self._runs = 0

    def add_workers(self, count: int, concurrency: int) -> None:
        """Start workers, once the engine is up. Raises RollqError."""
        if not self.engine_url:
            self.await_engine()
        for _ in range(count):
            self.start_worker(concurrency, self._tokenizer)
            self.workers.append(self._children[-1])

    def await_workers(self) -> None:
        """Returns once they take jobs. Raises RollqError."""
        deadline = time.monotonic() + TIMEOUT_S
        while not all(": ready, " in child.log.read_text(errors="replace") for child in self.workers):
            self.check()
            if time.monotonic() > deadline:
                raise RollqError(f"the workers do not start: {self.last_output()}")
            time.sleep(0.05)

    def play(self, groups: int, max_turns: int = MAX_TURNS) -> Played:
        """Play that many groups and take them as one batch. Raises RollqError when a rollout fails."""
        with self._run() as client:
            before, client_s = self.used(), time.thread_time()
            self._submit(client, groups, max_turns, ahead=groups)
            client_s = time.thread_time() - client_s
            with client.consumer() as consumer:
                batch = self._next(consumer, groups)
                after = self.used()
                episodes = _acknowledged(batch)
        return Played(
            episodes,
            after.at - before.at,
            after.workers_s - before.workers_s,
            after.engine_s - before.engine_s,
            after.redis_s - before.redis_s,
            client_s,
            after.bytes - before.bytes,
            after.others(before),
        )

    def play_steadily(self, slots: int, before: int, measured: int) -> Steady:
        """Play so many rollouts for each slot, unmeasured and measured, with a consumer that takes group by group."""
        episodes: list[Episode] = []
        groups = slots * (before + measured + 1) // SIZE  # the last ones keep the slots full
        with self._run() as client, client.consumer() as consumer:
            submit = threading.Thread(
                target=self._submit, args=(client, groups, MAX_TURNS, ahead_of(slots)), daemon=True
            )
            submit.start()
            marks = []
            for end in (slots * before, slots * (before + measured)):
                while len(episodes) < end:
                    episodes += _acknowledged(self._next(consumer, 1))
                marks.append((len(episodes), self.used()))
            while len(episodes) < groups * SIZE:
                episodes += _acknowledged(self._next(consumer, 1))
            submit.join(TIMEOUT_S)
        (first, began), (last, ended) = marks
        done, seconds = last - first, ended.at - began.at
        return Steady(
            episodes[first:last],
            done / seconds,
            (ended.workers_s - began.workers_s) / done,
            (ended.redis_s - began.redis_s) / done,
            (ended.engine_s - began.engine_s) / done,
            (ended.client_s - began.client_s) / done,
            (ended.scripts - began.scripts) / done,
            ended.others(began),
        )

    def _run(self) -> Client:
        self._runs += 1
        return Client(self.redis_url, run=f"measured-{self._runs}")

    def _submit(self, client: Client, groups: int, max_turns: int, ahead: int) -> None:
        budget = Budget(max_turns=max_turns)
        jobs = (
            Job(env=self.env, split=SPLIT, task=n % self._tasks, group=f"g{n}", size=SIZE, budget=budget)
            for n in range(groups)
        )
        client.submit(jobs, ahead=ahead)
        client.seal()

    def _next(self, consumer: Consumer, groups: int) -> Batch:
        """The next batch. Raises RollqError when a process or a rollout fails, or when it takes too long."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                batch = consumer.next(groups, CHECK_EVERY_S)
            except PullTimeout as e:
                self.check()
                if time.monotonic() > deadline:
                    raise RollqError(f"the measured rollouts do not end: {e}\n{self.last_output()}") from e
                continue
            if batch is None or len(batch.trajectories) < groups * SIZE:
                raise RollqError(f"measured rollouts have failed: {self.last_output()}")
            return batch

    def used(self) -> Used:
        workers_s, engine_s = sum(cpu_s(child.pid) for child in self.workers), cpu_s(self.engine.pid)
        redis_s, client_s, meter = self._meter.cpu_s(), time.process_time(), self._meter
        others_s = busy_s() - workers_s - engine_s - redis_s - client_s
        return Used(
            time.monotonic(), workers_s, engine_s, redis_s, client_s, float(meter.bytes()), meter.scripts(), others_s
        )

    def messages(self, count: int) -> float:
        """CPU seconds of a worker for a message whose job has ended."""
        publisher = Publisher(self.redis_url)
        job_id = f"measured-{self._runs}/g0/0"
        before = self.used().workers_s
        publisher.publish([Publication(job_id, "rollq", NEW)] * count)
        while any((publisher.backlog() or {}).values()):
            time.sleep(0.02)
        time.sleep(0.2)
        publisher.close()
        return (self.used().workers_s - before) / count

    def rest(self, seconds: float) -> tuple[float, float]:
        """Shares of a core that the workers and Redis need while there is nothing to do."""
        before = self.used()
        time.sleep(seconds)
        after = self.used()
        return (after.workers_s - before.workers_s) / seconds, (after.redis_s - before.redis_s) / seconds

    def __enter__(self) -> Site:
        return self

    def stop(self) -> None:
        if meter := getattr(self, "_meter", None):
            meter.close()
        super().stop()


def ahead_of(slots: int) -> int:
    """Groups that are not acknowledged, at most: as many again as are played."""
    return 2 * slots // SIZE


def _acknowledged(batch: Batch) -> list[Episode]:
    found = [episode(one.mask) for one in batch.trajectories]
    batch.ack()
    return found


def cpu_s(pid: int) -> float:
    """User and system time of the process so far."""
    # The name, in parentheses, may hold anything; utime and stime are the 14th and 15th field of the line.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def busy_s() -> float:
    """CPU seconds of all programs so far, on the cores that this process may use, and what other virtual machines took
    of these cores."""
    mine, ticks = {f"cpu{core}" for core in os.sched_getaffinity(0)}, 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in mine:
            user, nice, system, _, _, irq, soft, stolen, *_ = map(int, fields)
            ticks += user + nice + system + irq + soft + stolen
    return ticks * TICK_S


@contextmanager
def few_cores() -> Iterator[None]:
    """What is started inside the block shares CORES cores. Raises SettingsError on another system than Linux."""
    if not Path("/proc/self/stat").exists():
        raise SettingsError("costs are measured by /proc, which only Linux has: measure on Linux, or pass --costs")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _quiet(_: str) -> None:
    """Nothing is said of the processes."""


def memory_mb(pid: int, what: str) -> float:
    """`VmRSS` now, or `VmHWM`, the most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1000
