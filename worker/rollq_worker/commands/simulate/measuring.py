"""Measures what a worker costs: real processes on this machine play real rollouts, and the system says what they used.

The costs of Redis and of the clients come from the same runs. It needs Linux (/proc), and no GPU: the replay engine
plays the engine's part.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rollq.batch import Batch
from rollq.client.celery_publisher import Publisher
from rollq.client.client import Client
from rollq.errors import RollqError, SettingsError
from rollq.job import Budget, Job
from rollq.ledger.constants import NEW
from rollq.ledger.replies import Publication
from rollq.processes.child import Child
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.commands.environment_names import load_domain
from rollq_worker.simulation.costs.ledger_costs import measure_ledger
from rollq_worker.simulation.costs.real_ledger import Meter
from rollq_worker.simulation.costs.table import Costs, RedisCosts, WorkerCosts
from rollq_worker.simulation.fleet.traces import Episode, episode

SPLIT = "train"
SIZE = 4
BUSY, SHORT_TURNS = 16, 2
"""Concurrency of the busy worker, and the turns of its short rollouts."""
GROUPS, ROUNDS = 16, 3
IDLE_S = 2.0
WAITING, WAITING_S = 32, 0.5
"""Concurrency and engine latency of the worker that mostly waits."""
MESSAGES = 300
TIMEOUT_S = 300.0
LOOK_EVERY_S, LOOKS = 0.05, 40
"""Seconds between two looks at the rollouts that are done; looks between two checks that nothing failed."""
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

Say = Callable[[str], None]


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


@dataclass(frozen=True, slots=True)
class Steady:
    """What workers did between the first rollouts and the last, when all their slots were full."""

    episodes: Sequence[Episode]
    rollouts_a_s: float
    worker_s: float
    """CPU of all workers, of Redis and of the engine for a rollout."""
    redis_s: float
    engine_s: float
    scripts: float
    """Calls of the ledger's scripts for a rollout."""


class Site(DemoProcesses):
    """Redis, the replay engine and workers, and what they use."""

    def __init__(self, env: str, latency_s: float, tokenizer: str | None, say: Say) -> None:
        super().__init__(say)
        if not Path("/proc/self/stat").exists():
            raise SettingsError("costs are measured by /proc, which only Linux has: measure on Linux, or pass --costs")
        self.env, self._tokenizer = env, tokenizer
        self._tasks = load_domain(env, "simulate").splits()[SPLIT]
        flags = ["--tokenizer", tokenizer] if tokenizer else []
        self.start_redis()
        self.start_engine(["--env", env, "--latency", str(latency_s), *flags])
        self.await_engine()
        [self.engine] = self._children
        self.workers: list[Child] = []
        self._meter = Meter(self.redis_url)
        self._runs = 0

    def add_workers(self, count: int, concurrency: int) -> None:
        """Returns once they take jobs. Raises RollqError."""
        for _ in range(count):
            self.start_worker(concurrency, self._tokenizer)
        self.workers = self._children[1:]
        deadline = time.monotonic() + TIMEOUT_S
        while not all(": ready, " in child.log.read_text(errors="replace") for child in self.workers):
            self.check()
            if time.monotonic() > deadline:
                raise RollqError(f"the workers do not start: {self.last_output()}")
            time.sleep(0.05)

    def play(self, groups: int, max_turns: int = 30) -> Played:
        """Play that many groups and wait for the last one. Raises RollqError when a rollout fails."""
        with self._run() as client:
            before, began = self._used(), time.monotonic()
            own = time.process_time()
            self._submit(client, groups, max_turns)
            own = time.process_time() - own
            client.seal()
            self._wait(client, groups * SIZE)
            wall, after = time.monotonic() - began, self._used()
            episodes = [one for batch in client.batches(groups=1) for one in _acknowledged(batch)]
        workers, engine, redis, kept = (end - start for start, end in zip(before, after, strict=True))
        return Played(episodes, wall, workers, engine, redis, own, kept)

    def play_steadily(self, groups: int, slots: int) -> Steady:
        """Play that many groups, and measure while all slots are full. A consumer takes the groups meanwhile."""
        episodes: list[Episode] = []

        def consume() -> None:
            with Client(self.redis_url, run=f"measured-{self._runs}") as consumer:
                for batch in consumer.batches(groups=1):
                    episodes.extend(_acknowledged(batch))

        with self._run() as client:
            self._submit(client, groups, 30)
            client.seal()
            consuming = threading.Thread(target=consume, daemon=True)
            consuming.start()
            marks = []
            for rollouts in (slots, groups * SIZE - slots):
                done = self._wait(client, rollouts)
                marks.append((time.monotonic(), done, *self._used()[:3], self._meter.scripts()))
            self._wait(client, groups * SIZE)
            consuming.join(TIMEOUT_S)
        seconds, done, workers, engine, redis, scripts = (end - start for start, end in zip(*marks, strict=True))
        return Steady(episodes, done / seconds, workers / done, redis / done, engine / done, scripts / done)

    def _run(self) -> Client:
        self._runs += 1
        return Client(self.redis_url, run=f"measured-{self._runs}")

    def _submit(self, client: Client, groups: int, max_turns: int) -> None:
        budget = Budget(max_turns=max_turns)
        jobs = (
            Job(env=self.env, split=SPLIT, task=n % self._tasks, group=f"g{n}", size=SIZE, budget=budget)
            for n in range(groups)
        )
        client.submit(jobs, ahead=max(256, groups))

    def _wait(self, client: Client, rollouts: int) -> int:
        """Returns the number of rollouts that are done, once it is at least that. Raises RollqError."""
        began, looks = time.monotonic(), 0
        keys, connection = client.reader.keys, client.reader.redis
        # The stats are a script of their own, whose cost would be measured as well: one field is read in their place.
        while (done := int(connection.hget(keys.count, "done") or 0)) < rollouts:
            looks += 1
            if looks % LOOKS == 0:
                self._still_going(client, began)
            time.sleep(LOOK_EVERY_S)
        return done

    def _still_going(self, client: Client, began: float) -> None:
        self.check()
        if client.stats()["dead"] or time.monotonic() - began > TIMEOUT_S:
            raise RollqError(f"the measured rollouts do not end as they should: {client.stats()}\n{self.last_output()}")

    def _used(self) -> tuple[float, float, float, float]:
        """CPU seconds of the workers, the engine and Redis so far, and the bytes in Redis."""
        workers = sum(cpu_s(child) for child in self.workers)
        return workers, cpu_s(self.engine), self._meter.cpu_s(), float(self._meter.bytes())

    def own_cpu_s(self) -> float:
        """CPU seconds of all these processes and of this one so far."""
        return time.process_time() + sum(cpu_s(child) for child in self._children) + self._meter.cpu_s()

    def messages(self, count: int) -> float:
        """CPU seconds of a worker for a message whose job has ended."""
        publisher = Publisher(self.redis_url)
        job_id = f"measured-{self._runs}/g0/0"
        before = self._used()[0]
        publisher.publish([Publication(job_id, "rollq", NEW)] * count)
        while any((publisher.backlog() or {}).values()):
            time.sleep(0.02)
        time.sleep(0.2)
        publisher.close()
        return (self._used()[0] - before) / count

    def __enter__(self) -> Site:
        return self

    def stop(self) -> None:
        if meter := getattr(self, "_meter", None):
            meter.close()
        super().stop()


def _acknowledged(batch: Batch) -> list[Episode]:
    found = [episode(one.mask) for one in batch.trajectories]
    batch.ack()
    return found


def cpu_s(child: Child) -> float:
    """User and system time of the process so far."""
    # The name, in parentheses, may hold anything; utime and stime are the 14th and 15th field of the line.
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def memory_mb(child: Child, what: str) -> float:
    """`VmRSS` now, or `VmHWM`, the most so far."""
    lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1000


def measure(env: str, tokenizer: str | None, say: Say) -> Costs:
    """All costs on this machine. Takes about a minute. Raises SettingsError and RollqError."""
    say("the ledger's scripts on a real Redis, 16 and 10,000 jobs ...")
    redis, clients, version = measure_ledger()
    say(
        f"{env}: a busy worker with {BUSY} rollouts at a time, and one with {WAITING} that waits {WAITING_S:g} s a turn"
    )
    with Site(env, 0.0, tokenizer, _quiet) as busy, Site(env, WAITING_S, tokenizer, _quiet) as waiting:
        busy.add_workers(1, BUSY)
        waiting.add_workers(1, WAITING)
        [worker] = waiting.workers
        busy.play(GROUPS)
        waiting.play(1)
        rest_mb, idle_s = memory_mb(worker, "VmRSS"), cpu_s(worker)
        time.sleep(IDLE_S)
        idle = (cpu_s(worker) - idle_s) / IDLE_S
        # In turns, because the speed of a shared machine drifts.
        rounds = [
            (busy.play(GROUPS), busy.play(GROUPS, SHORT_TURNS), waiting.play(WAITING // SIZE)) for _ in range(ROUNDS)
        ]
        message_s = median(busy.messages(MESSAGES) for _ in range(ROUNDS))
        rollout_mb = max(0.0, memory_mb(worker, "VmHWM") - rest_mb) / WAITING
    pairs = [(full, short) for full, short, _ in rounds]
    costs = _worker_costs(rounds, message_s, idle)
    costs = replace(costs, rest_mb=rest_mb, rollout_mb=rollout_mb)
    long = [full for full, _ in pairs]
    publish_s = median(one.client_s / one.rollouts for one in long) - clients.submit_group_s / SIZE
    engine_s = median(one.engine_s / one.turns for one in long)
    return Costs(
        worker=costs,
        clients=replace(clients, publish_s=max(0.0, publish_s), replay_engine_turn_s=engine_s),
        redis=_redis_costs(redis, pairs),
        machine=_machine(env, tokenizer, version, long),
    )


def _worker_costs(rounds: Sequence[tuple[Played, Played, Played]], message_s: float, idle: float) -> WorkerCosts:
    """A long and a short rollout tell what a turn costs, and what the rest of a rollout does."""
    turn_s = median(_slope(full, short, full.workers_s, short.workers_s) for full, short, _ in rounds)
    rest_s = median((full.workers_s - turn_s * full.turns) / full.rollouts for full, _, _ in rounds)
    return WorkerCosts(
        turn_s=turn_s,
        rollout_s=max(0.0, rest_s - message_s),
        message_s=max(0.0, min(message_s, rest_s)),
        wake_s=max(0.0, median(_wake_s(full, waiting, idle) for full, _, waiting in rounds)),
        idle=idle,
    )


def _wake_s(busy: Played, waiting: Played, idle: float) -> float:
    """What a turn costs more that finds its process without work: all turns but the share in which it was busy."""
    more = waiting.workers_s - idle * waiting.wall_s - busy.workers_s / busy.turns * waiting.turns
    return more / (waiting.turns * (1 - min(0.9, waiting.workers_s / waiting.wall_s)))


def _quiet(_: str) -> None:
    """Nothing is said of the processes."""


def _slope(full: Played, short: Played, of_full: float, of_short: float) -> float:
    """What a further turn adds."""
    turns = full.turns / full.rollouts - short.turns / short.rollouts
    if turns <= 0.5:
        raise SettingsError(
            f"rollouts of this environment have {full.turns / full.rollouts:.1f} turns, which are too few to tell what"
            " a turn costs: measure with another --env"
        )
    return (of_full / full.rollouts - of_short / short.rollouts) / turns


def _redis_costs(redis: RedisCosts, pairs: Sequence[tuple[Played, Played]]) -> RedisCosts:
    """What the ledger's calls do not explain of Redis's CPU is Celery's message and the renewals."""
    rests, tokens, rollouts = [], [], []
    for full, short in pairs:
        turns = full.turns / full.rollouts
        ledger = redis.submit_job_s + redis.submit_group_s / SIZE + redis.claim_s + redis.complete_s
        ledger += (turns - 1) * redis.append_s + full.bytes / full.rollouts / 1000 * redis.append_kb_s
        rests.append(full.redis_s / full.rollouts - ledger)
        more = full.own_tokens / full.rollouts - short.own_tokens / short.rollouts
        tokens.append((full.bytes / full.rollouts - short.bytes / short.rollouts) / more)
        rollouts.append(full.bytes / full.rollouts - tokens[-1] * full.own_tokens / full.rollouts - redis.job_bytes)
    return replace(
        redis,
        message_s=max(0.0, median(rests)),
        token_bytes=max(0.0, median(tokens)),
        rollout_bytes=max(0.0, median(rollouts)),
    )


def _machine(env: str, tokenizer: str | None, redis: str, played: Sequence[Played]) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "redis": redis,
        "env": env,
        "tokenizer": Path(tokenizer).name if tokenizer else "bundled",
        "turns": round(played[0].turns / played[0].rollouts, 1),
        "tokens": round(sum(one.tokens for one in played[0].episodes) / played[0].rollouts),
        "load": round(os.getloadavg()[0], 1),
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
