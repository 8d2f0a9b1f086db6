"""Workers that are killed, stopped, frozen, out of memory, or out of time."""

import os
import signal
import time

from rollq.processes.child import Child
from tests.chaos.rows import row
from tests.chaos.scene import EXIT_S, LEASE_S, SLACK_S, Scene


@row("worker-kill")
def kill(scene: Scene) -> None:
    """kill -9 with jobs in hand; their leases run out."""
    victim, _ = scene.open(latency=0.5, workers=(8, 4))
    scene.submit(10)
    scene.await_some(victim)
    time.sleep(scene.rng.uniform(0.0, 1.5))
    held = scene.caught(victim, 4)
    scene.kill(victim)
    scene.regenerable = len(held)
    start = time.monotonic()
    scene.worker(8)
    scene.wait(lambda: scene.given_back(held), "the expiry of a dead worker's leases", LEASE_S + 10)
    expired = time.monotonic() - start
    scene.check(expired <= LEASE_S + EXIT_S + SLACK_S, f"a dead worker's jobs came back only after {expired:.1f} s")
    scene.wait(lambda: scene.taken_over(held), "others to play them", 30)
    scene.recovered_s.append(time.monotonic() - start)


@row("worker-sigterm")
def sigterm(scene: Scene) -> None:
    """Scaled in, three times, with jobs in hand: out in five seconds, and no sampled token is sampled again."""
    *victims, _ = scene.open(latency=1.0, workers=(4, 4, 4, 8))
    scene.submit(10)
    scene.regenerable = 0
    for victim, number in zip(victims, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True):
        held = scene.await_some(victim, 2)
        scene.kill(victim, number)
        start = time.monotonic()
        leave(scene, victim)
        scene.check(scene.given_back(held), "a worker left and still holds jobs")
        scene.wait(lambda held=held: scene.taken_over(held), "others to play them", 30)  # type: ignore[misc]
        scene.recovered_s.append(time.monotonic() - start)


def leave(scene: Scene, worker: Child) -> None:
    """Waits for its exit, which has a bound."""
    start = time.monotonic()
    scene.wait(lambda: worker.exit_code is not None, "a worker's exit", 20)
    took = time.monotonic() - start
    scene.check(took <= EXIT_S + SLACK_S, f"a worker left {took:.1f} s after its signal")
    scene.check(worker.exit_code == 0, f"a worker left with {worker.exit_code}")


@row("worker-stop")
def stop(scene: Scene) -> None:
    """Frozen for longer than its lease, then awake: what it still writes is refused."""
    victim, _ = scene.open(latency=0.5, workers=(8, 8))
    scene.submit(10)
    scene.await_some(victim)
    scene.kill(victim, signal.SIGSTOP)
    start = time.monotonic()
    held = scene.caught(victim, 4)
    scene.wait(lambda: scene.taken_over(held), "others to play a frozen worker's jobs", LEASE_S + 30)
    scene.recovered_s.append(time.monotonic() - start)
    os.kill(victim.pid, signal.SIGCONT)
    scene.wait(lambda: scene.stats()["fenced"] > 0, "a refused write of the worker that woke up", 30)
    scene.regenerable = len(held)


@row("worker-oom")
def oom(scene: Scene) -> None:
    """An environment exhausts the memory: three processes vanish in mid-step, a fourth step gets a MemoryError."""
    tasks = scene.rng.sample(range(8), 4)
    for n, task in enumerate(tasks):
        (scene.mischief / f"{'memory' if n == 3 else 'die'}.{task}.0").touch()
    workers = scene.open(workers=(4, 4))
    scene.submit(8, env="chaos")
    vanished = 0
    start = time.monotonic()
    while time.monotonic() - start < 60 and (any(scene.mischief.iterdir()) or scene.ended() < len(scene.expected)):
        for n, worker in enumerate(workers):  # as an orchestrator does
            if worker.exit_code is not None:
                vanished += worker.exit_code == 137
                workers[n] = scene.worker(4, wait=False)
        time.sleep(0.2)
    scene.struck("workers that vanished", vanished, 3)
    scene.struck("steps out of memory", scene.stats()["failures"].get("env", 0))
    scene.recovered_s.append(time.monotonic() - start)


@row("worker-clock")
def clock(scene: Scene) -> None:
    """One worker's own clock is a day off and jumps to the other side every two seconds; another is killed meanwhile.

    It stamps journals and logs; leases and deadlines go by other clocks.
    """
    (victim,) = scene.open(latency=0.4, workers=(4,))
    skewed = scene.worker(8, env={"CHAOS_SKEW_S": "86400"})
    scene.submit(10)
    scene.await_some(victim, 2)
    time.sleep(scene.rng.uniform(0.5, 1.5))
    held = scene.caught(victim)
    scene.kill(victim)
    start = time.monotonic()
    scene.wait(lambda: scene.taken_over(held), "a worker with a wrong clock to take over", LEASE_S + 30)
    scene.recovered_s.append(time.monotonic() - start)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    jumps = scene.skewed.read_text().splitlines() if scene.skewed.exists() else []
    scene.struck("jumps of the worker's clock", sum(line.startswith(f"{skewed.pid} ") for line in jumps), 3)


@row("worker-all")
def every(scene: Scene) -> None:
    """All workers at once: one is stopped, one killed, one told twice to leave."""
    workers = scene.open(latency=0.5, workers=(4, 4, 4))
    scene.submit(10)
    for worker in workers:
        scene.await_some(worker, 2)
    time.sleep(scene.rng.uniform(0.3, 1.2))
    held = [scene.held_by(worker) for worker in workers]
    scene.check(all(held), f"the fault did not happen: the workers had {[len(some) for some in held]} jobs")
    scene.kill(workers[0])
    scene.kill(workers[1], signal.SIGSTOP)
    scene.kill(workers[2], signal.SIGTERM)
    time.sleep(0.2)
    if workers[2].exit_code is None:
        os.kill(workers[2].pid, signal.SIGTERM)  # leaves at once; its leases expire
    start = time.monotonic()
    scene.worker(12)
    everything = [one for some in held for one in some]
    scene.wait(lambda: scene.taken_over(everything), "a new worker to take everything over", LEASE_S + 30)
    scene.recovered_s.append(time.monotonic() - start)
    os.kill(workers[1].pid, signal.SIGCONT)


@row("worker-big", deadline_s=360.0)
def big(scene: Scene) -> None:
    """128 jobs in one worker while a reply takes half a minute: told to leave, then its successor killed."""
    (first,) = scene.open(latency=30.0, workers=(128,))
    scene.submit(32, 4)
    scene.wait(lambda: scene.stats()["leased"] == 128, "128 leases", 60)
    time.sleep(2)
    second = scene.worker(128)
    held = scene.held_by(first)
    scene.kill(first, signal.SIGTERM)
    leave(scene, first)
    scene.check(scene.given_back(held), "a worker left and still holds jobs")
    scene.wait(lambda: len(scene.held_by(second)) >= 100, "another worker to play them", 30)
    scene.worker(128)
    held = scene.held_by(second)
    scene.kill(second)
    start = time.monotonic()
    scene.kill_engine()
    scene.latency = 0.05
    scene.restart_engine()
    scene.wait(lambda: scene.given_back(held), "the expiry of a dead worker's leases", LEASE_S + 10)
    expired = time.monotonic() - start
    scene.check(expired <= LEASE_S + EXIT_S + SLACK_S, f"a dead worker's jobs came back only after {expired:.1f} s")
    scene.recover(lambda: scene.taken_over(held), "a third worker to play them", 30, start)
