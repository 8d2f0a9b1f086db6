"""Everything at random: for a while, anything may be killed, frozen, restarted or flooded at any moment.

It uses the commands and nothing else of rollq: `rollq redis`, `engine` and `worker` run it, `submit` and `pull` go on
all the while, and the account at the end is made from pull's file and `rollq stats --json`. Seeded: the same seed makes
the same choices, though not at the same moments of the run. Afterwards everything is repaired, one more worker is
killed in the calm, and the run must come to the same account as any row.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rollq.processes.child import Child
from tests.chaos.flood import flood
from tests.chaos.parts import RUN
from tests.chaos.scene import EXIT_S, LEASE_S, SLACK_S, Scene

SIZE = 4
LOT = 5
"""Groups that the producer submits at a time."""
AHEAD = 12
WORKERS = 3
SLOTS = 8
"""Of each worker: all of a lot's jobs run at once."""
LOOK_S = 1.0
"""Between two looks at `rollq stats`, each of which starts a process."""


class Outside(Scene):
    """A scene that is looked at through the commands."""

    def __init__(self, folder: Path, seed: int, deadline_s: float) -> None:
        super().__init__(folder, seed, deadline_s)
        self._stats: dict[str, Any] = {}
        self._looked = float("-inf")

    def stats(self) -> dict[str, Any]:
        if time.monotonic() - self._looked > LOOK_S:
            self._stats, self._looked = self.run("stats", "--run", RUN), time.monotonic()
        return self._stats

    def dead(self) -> dict[str, str]:
        return {letter["job"]: f"{letter['class']}: {letter['reason']}" for letter in self.run("dead", "--run", RUN)}

    def dropped(self, jobs: Iterable[str]) -> set[str]:
        """All of them, if the ledger says that it has dropped so many."""
        found = set(jobs)
        return found if len(found) == self.stats()["dropped"] else set()


class Storm:
    """What is running, and what can be done to it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.workers = scene.open(latency=0.2, cable=True, workers=(SLOTS,) * WORKERS)
        scene.consume(LOT)
        scene.regenerable = 0
        self.producer: Child | None = None
        self.flags: tuple[str, ...] = ()
        self.tasks = 0
        self.frozen: set[int] = set()
        self.leaving: set[int] = set()
        self.done: dict[str, int] = {}
        self.faults: list[Callable[[], None]] = [
            self.kill_worker,
            self.kill_worker,
            self.drain_worker,
            self.freeze_worker,
            self.kill_engine,
            self.freeze_engine,
            self.update_weights,
            self.restart_redis,
            self.cut_redis,
            self.freeze_line,
            self.kill_consumer,
            self.kill_producer,
            self.flood,
        ]

    def strike(self) -> None:
        fault = self.scene.rng.choice(self.faults)
        fault()
        self.done[fault.__name__] = self.done.get(fault.__name__, 0) + 1

    def tend(self) -> None:
        """What an orchestrator does: start again what has ended."""
        for n, worker in enumerate(self.workers):
            if worker.exit_code is not None:
                self.workers[n] = self.scene.worker(SLOTS, wait=False)
        if self.scene.consumer is None or self.scene.consumer.exit_code is not None:
            self.scene.consume(LOT)

    def keep_going(self) -> None:
        """Also the producer: its lot again when it was killed, the next one when it is through."""
        self.tend()
        if self.producer is None or self.producer.exit_code is not None:
            if self.producer is None or self.producer.exit_code == 0:
                self.tasks += LOT
                self.scene.expect("shop", range(self.tasks), SIZE)
            self.producer = self.submit()

    def submit(self) -> Child:
        first, last = max(0, self.tasks - LOT), self.tasks - 1
        line = self.scene.line(first, last, SIZE, "--ahead", str(AHEAD), *self.flags, "--json")
        return self.scene.start("submit", *line)

    def calm(self) -> None:
        """Waits until all that was submitted has ended."""
        self.scene.wait(self._submitted, "a submission")
        while self.producer is None or self.producer.exit_code != 0:
            self.producer = self.submit()
            self.scene.wait(self._submitted, "a submission again")
        self.scene.wait(self._ended, "the end of all jobs")

    def finale(self) -> None:
        """One worker dies while all else is well, and the run is sealed."""
        self.tasks += LOT
        self.scene.expect("shop", range(self.tasks), SIZE)
        self.flags = ("--seal",)
        self.producer = self.submit()
        gateway = self.scene.gateway
        self.scene.wait(lambda: gateway.waiting >= WORKERS * 2, "a lot that is played", 60)
        before, killed = gateway.regenerated, time.monotonic()
        self._signal(self.workers[0], signal.SIGKILL)
        time.sleep(1.0)
        cut = {job for job, at in gateway.left.items() if at >= killed}
        self.scene.wait(lambda: all(gateway.asked[job] > gateway.left[job] for job in cut), "a dead worker's jobs", 60)
        took = time.monotonic() - killed
        self.scene.recovered_s.append(took)
        self.scene.check(took <= LEASE_S + EXIT_S + SLACK_S, f"a dead worker's jobs went on only after {took:.1f} s")
        again = gateway.regenerated - before  # also what was answered and not yet journaled
        self.scene.check(again <= SLOTS, f"{again} turns again after the death of a worker of {SLOTS} jobs")
        self.calm()

    def _submitted(self) -> bool:
        self.tend()
        return self.producer is not None and self.producer.exit_code is not None

    def _ended(self) -> bool:
        self.tend()
        return self.scene.ended() >= len(self.scene.expected)

    # -- faults

    def kill_worker(self) -> None:
        self._disturb(SLOTS)
        self._signal(self.scene.rng.choice(self.workers), signal.SIGKILL)

    def drain_worker(self) -> None:
        worker = self.scene.rng.choice(self.workers)
        if worker.exit_code is None and worker.pid not in self.frozen:
            self._disturb(SLOTS)  # what is on the engine when that cannot be asked for it
            self.leaving.add(worker.pid)
            self._signal(worker, signal.SIGTERM)
            threading.Thread(target=self._time_exit, args=(worker, time.monotonic()), daemon=True).start()

    def freeze_worker(self) -> None:
        worker, seconds = self.scene.rng.choice(self.workers), self.scene.rng.choice((2.0, 8.0, 20.0))
        if worker.pid not in self.leaving:
            self._disturb(SLOTS)
            self._freeze(worker, seconds)

    def kill_engine(self) -> None:
        self._disturb(self.scene.gateway.waiting)
        self.scene.faults += 1
        self.scene.kill_engine()
        time.sleep(self.scene.rng.uniform(0.0, 3.0))
        self.scene.restart_engine()

    def freeze_engine(self) -> None:
        self._freeze(self.scene.engine, self.scene.rng.uniform(1.0, 5.0))

    def update_weights(self) -> None:
        self.scene.faults += 1
        self.scene.later(0.0, lambda: self.scene.engine_post("/update_weight_version", new_version=str(time.time())))

    def restart_redis(self) -> None:
        self.scene.kill(self.scene.redis, self.scene.rng.choice((signal.SIGTERM, signal.SIGKILL)))
        self.scene.wait(lambda: self.scene.redis.exit_code is not None, "the end of Redis", 15)
        self.scene.start_redis()

    def cut_redis(self) -> None:
        assert self.scene.cable
        self.scene.faults += self.scene.cable.cut() > 0

    def freeze_line(self) -> None:
        assert self.scene.cable
        self.scene.faults += 1
        self.scene.cable.freeze()
        self.scene.later(self.scene.rng.uniform(0.5, 7.0), self.scene.cable.thaw)

    def kill_consumer(self) -> None:
        if self.scene.consumer is not None:
            self._signal(self.scene.consumer, signal.SIGKILL)

    def kill_producer(self) -> None:
        if self.producer is not None:
            self._signal(self.producer, signal.SIGKILL)

    def flood(self) -> None:
        """Twice: a worker has the same message again while it plays the job."""
        self.scene.faults += flood(self.scene) + flood(self.scene)

    def _disturb(self, turns: int) -> None:
        """So many turns may be generated again for this."""
        self.scene.regenerable = (self.scene.regenerable or 0) + turns

    def _signal(self, child: Child, number: int) -> None:
        if child.exit_code is None:
            self.scene.faults += self.scene.hit(child, number)

    def _freeze(self, child: Child, seconds: float) -> None:
        if child.exit_code is None:
            self.frozen.add(child.pid)
            self.scene.faults += self.scene.hit(child, signal.SIGSTOP)
            self.scene.later(seconds, lambda: self.wake(child))

    def wake(self, child: Child) -> None:
        if child.exit_code is None:
            os.kill(child.pid, signal.SIGCONT)
        self.frozen.discard(child.pid)

    def _time_exit(self, worker: Child, since: float) -> None:
        while worker.exit_code is None:
            time.sleep(0.05)
        took = time.monotonic() - since
        self.scene.check(took <= EXIT_S + SLACK_S, f"a worker left {took:.1f} s after SIGTERM")


def storm(scene: Scene, seconds: float) -> None:
    """Strikes for so long; then everything that should run does, until the run is sealed."""
    weather = Storm(scene)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        weather.keep_going()
        pause = time.monotonic() + scene.rng.uniform(0.3, 2.5)
        while time.monotonic() < pause:
            weather.keep_going()
            time.sleep(0.1)
        weather.strike()
    for child in (*weather.workers, scene.engine):
        weather.wake(child)
    assert scene.cable
    scene.cable.thaw()
    start = time.monotonic()
    weather.calm()
    settled_s = time.monotonic() - start
    weather.finale()
    print(f"the storm: {scene.faults} faults, settled after {settled_s:.1f} s; {weather.done}", flush=True)
