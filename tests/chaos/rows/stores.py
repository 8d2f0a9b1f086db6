"""Redis, restarted, cut off and slow."""

import os
import signal
import time

from tests.chaos.rows import row
from tests.chaos.scene import Scene


@row("redis-restart")
def restart(scene: Scene) -> None:
    """Ended in mid-run, once with SIGTERM and once with kill -9; it comes back with its append-only file."""
    scene.open(workers=(8, 4))
    scene.submit(12)
    for number in scene.rng.sample([signal.SIGTERM, signal.SIGKILL], 2):
        scene.wait(scene.progress(), "a run that goes", 30)
        scene.kill(scene.redis, number)
        scene.wait(lambda: scene.redis.exit_code is not None, "the end of Redis", 15)
        time.sleep(scene.rng.uniform(0.5, 4.0))
        back = time.monotonic()
        scene.start_redis()
        scene.recover(scene.progress(), "turns after Redis came back", 40, back)


@row("redis-cut")
def cut(scene: Scene) -> None:
    """Every connection reset, again and again."""
    scene.open(workers=(8, 4), cable=True)
    scene.consume()
    scene.submit(10)
    assert scene.cable
    for _ in range(6):
        time.sleep(scene.rng.uniform(0.2, 1.2))
        scene.faults += scene.cable.cut() > 0
        scene.recover(scene.progress(), "turns after a cut", 40)


@row("redis-slow")
def slow(scene: Scene) -> None:
    """An answer takes 200 ms; then the network stands still for longer than a client waits, and late words arrive."""
    scene.open(workers=(8, 4), cable=True)
    scene.submit(8)
    assert scene.cable
    scene.cable.delay_s = 0.1
    scene.faults += 1
    scene.recover(scene.progress(), "turns over a slow line", 60)
    time.sleep(3)
    scene.cable.delay_s = 0.0
    for seconds in (6.0, scene.rng.uniform(1, 4)):
        scene.cable.freeze()
        scene.faults += 1
        time.sleep(seconds)
        scene.cable.thaw()
        scene.recover(scene.progress(), "turns after a standstill", 40)


@row("redis-stop")
def stop(scene: Scene) -> None:
    """The server itself is frozen for longer than a lease: nobody could renew, so nothing may expire at once."""
    scene.open(workers=(8, 4))
    scene.submit(10)
    scene.wait(scene.progress(), "a run that goes", 30)
    scene.kill(scene.redis, signal.SIGSTOP)
    time.sleep(17)
    awake = time.monotonic()
    os.kill(scene.redis.pid, signal.SIGCONT)
    scene.recover(scene.progress(), "turns after Redis woke up", 40, awake)


@row("redis-full")
def full(scene: Scene) -> None:
    """Out of memory for some seconds: Redis refuses every write that needs any, and keeps what it has."""
    scene.open(workers=(8, 4))
    scene.submit(10)
    redis = scene.client.ledger.redis
    for _ in range(2):
        scene.wait(scene.progress(), "a run that goes", 40)
        redis.config_set("maxmemory", 1)
        scene.faults += 1
        time.sleep(scene.rng.uniform(2.0, 6.0))
        redis.config_set("maxmemory", 0)
        scene.recover(scene.progress(), "turns with memory again", 40)
    scene.cost_nothing()
