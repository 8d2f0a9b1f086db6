"""Everything at random: for a while, anything may be killed, frozen, restarted or flooded at any moment.

Seeded: the same seed makes the same choices, though not at the same moments of the run. Producing and consuming go on
all the while; afterwards the scene is repaired and must come to the same account as any row.
"""

import os
import signal
import time
from collections.abc import Callable

from rollq.children import Child
from tests.chaos.flood import flood
from tests.chaos.scene import Scene

SIZE = 4
LOT = 5
"""Groups that the producer submits at a time."""
WORKERS = 2


class Storm:
    """What is running, and what can be done to it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.workers = scene.open(latency=0.2, cable=True, workers=(8,) * WORKERS)
        scene.consume(LOT)
        self.producer: Child | None = None
        self.tasks = 0
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
                self.workers[n] = self.scene.worker(8, wait=False)
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

    def submit(self, *flags: str) -> Child:
        line = self.scene.line(max(0, self.tasks - LOT), self.tasks - 1, SIZE, "--ahead", "12", *flags, "--json")
        return self.scene.start("submit", *line)

    def seal(self) -> None:
        """The last lot once more, and no more after it."""
        sealed = False
        while not sealed:
            self.scene.wait(self._submitted, "a submission")
            self.producer = self.submit("--seal")
            self.scene.wait(self._submitted, "the last submission")
            sealed = self.producer.exit_code == 0

    def _submitted(self) -> bool:
        self.tend()
        return self.producer is not None and self.producer.exit_code is not None

    def settled(self) -> bool:
        self.tend()
        return self.scene.ended() >= len(self.scene.expected)

    # -- faults

    def kill_worker(self) -> None:
        self._signal(self.scene.rng.choice(self.workers), signal.SIGKILL)

    def drain_worker(self) -> None:
        self._signal(self.scene.rng.choice(self.workers), signal.SIGTERM)

    def freeze_worker(self) -> None:
        self._freeze(self.scene.rng.choice(self.workers), self.scene.rng.choice((2.0, 8.0, 20.0)))

    def kill_engine(self) -> None:
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
        self.scene.faults += flood(self.scene)

    def _signal(self, child: Child, number: int) -> None:
        if child.exit_code is None:
            self.scene.kill(child, number)

    def _freeze(self, child: Child, seconds: float) -> None:
        if child.exit_code is None:
            self.scene.kill(child, signal.SIGSTOP)
            self.scene.later(seconds, lambda: _wake(child))


def _wake(child: Child) -> None:
    if child.exit_code is None:
        os.kill(child.pid, signal.SIGCONT)


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
    start = time.monotonic()
    for child in (*weather.workers, scene.engine):
        _wake(child)
    assert scene.cable
    scene.cable.thaw()
    weather.seal()
    scene.recover(weather.settled, "the end of all jobs", 1e9, start)
    print(f"the storm: {scene.faults} faults; {weather.done}", flush=True)
