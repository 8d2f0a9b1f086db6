"""Redis, restarted, cut off, slow, full, and on another day."""

import os
import signal
import time
from pathlib import Path

from tests.chaos.rows import row
from tests.chaos.scene import EXIT_S, LEASE_S, SLACK_S, Scene


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
    scene.cost_nothing()


@row("redis-cut")
def cut(scene: Scene) -> None:
    """Every connection reset, again and again."""
    scene.open(latency=0.5, workers=(8, 4), cable=True)
    scene.consume()
    scene.submit(12)
    assert scene.cable
    for _ in range(6):
        time.sleep(scene.rng.uniform(0.2, 1.2))
        plugged = scene.cable.plugged
        ends = scene.cable.cut()
        scene.recover(scene.progress(), "turns after a cut", 40)
        time.sleep(0.2)
        scene.struck("cuts that made clients connect again", int(ends > 0 and scene.cable.plugged > plugged))
    scene.cost_nothing()


@row("redis-slow")
def slow(scene: Scene) -> None:
    """An answer takes 200 ms; then the network stands still for longer than a client waits, and late words arrive."""
    scene.open(latency=0.3, workers=(8, 4), cable=True)
    scene.submit(10)
    assert scene.cable
    scene.cable.delay_s = 0.1
    scene.recover(scene.progress(), "turns over a slow line", 60)
    time.sleep(3)
    scene.cable.delay_s = 0.0
    scene.struck("slow lines", int(scene.cable.delayed > 20))
    for seconds in (6.0, scene.rng.uniform(1, 4)):
        held = scene.cable.held
        scene.cable.freeze()
        time.sleep(seconds)
        scene.cable.thaw()
        scene.recover(scene.progress(), "turns after a standstill", 40)
        scene.struck("standstills of the line", int(scene.cable.held > held))
    scene.cost_nothing()


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
    scene.cost_nothing()


@row("redis-full")
def full(scene: Scene) -> None:
    """Out of memory for some seconds: Redis refuses every write that needs any, and keeps what it has."""
    scene.open(workers=(8, 4))
    scene.submit(10)
    redis = scene.client.ledger.redis
    for _ in range(2):
        scene.wait(scene.progress(), "a run that goes", 40)
        refused = _refused(scene)
        redis.config_set("maxmemory", 1)
        time.sleep(scene.rng.uniform(2.0, 6.0))
        redis.config_set("maxmemory", 0)
        scene.struck("times that Redis refused a write", int(_refused(scene) > refused))
        scene.recover(scene.progress(), "turns with memory again", 40)
    scene.cost_nothing()


def _refused(scene: Scene) -> int:
    """Commands that this Redis has refused for want of memory."""
    return int(scene.client.ledger.redis.info("errorstats").get("errorstat_OOM", {}).get("count", 0))


@row("redis-clock")
def clock(scene: Scene) -> None:
    """The ledger's only clock jumps: an hour ahead, then a day back, then another hour back as a worker dies."""
    at = scene.loosen_clock()
    victim, _ = scene.open(latency=0.4, workers=(8, 4))
    scene.consume()
    scene.submit(20)
    for jump in (3600, -86400):
        scene.wait(scene.progress(), "a run that goes", 40)
        set_clock(scene, at, jump)
        scene.recover(scene.progress(), "turns after the jump", 40)
        time.sleep(scene.rng.uniform(2.0, 4.0))  # whatever would expire does now
    stats = scene.stats()
    scene.check(not stats["failures"] and not stats["expired"], f"a jump cost budget: {stats['failures']}")
    scene.await_some(victim)
    held = scene.caught(victim)
    scene.kill(victim)
    start = time.monotonic()
    set_clock(scene, at, -3600)
    scene.worker(8, wait=False)
    scene.wait(lambda: scene.given_back(held), "the expiry of a dead worker's leases", LEASE_S + 10)
    expired = time.monotonic() - start
    scene.check(expired <= LEASE_S + EXIT_S + SLACK_S, f"a dead worker's jobs came back only after {expired:.1f} s")
    scene.recover(lambda: scene.taken_over(held), "others to play them", 30, start)
    failures = scene.stats()["failures"]
    scene.check(failures == {"worker": len(held)}, f"a death of a worker with {len(held)} jobs cost {failures}")


def set_clock(scene: Scene, at: Path, jump: int) -> None:
    """Moves the clock of this Redis, and looks whether it did."""

    def ahead() -> float:
        seconds, micros = scene.client.ledger.redis.time()
        return float(seconds + micros / 1e6 - time.time())

    before = ahead()
    at.write_text(str(int(at.read_text()) + jump))
    time.sleep(0.3)
    scene.struck("jumps of Redis's clock", int(abs(ahead() - before - jump) < 30))
