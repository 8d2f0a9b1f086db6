"""A Redis that restarts, is cut off, slow, frozen or full, or whose clock jumps."""

import os
import signal
import time
from pathlib import Path

from redis import OutOfMemoryError

from tests.chaos.fault_run import FaultRun
from tests.chaos.rows import row
from tests.ledger_of import ledger_of


@row("redis-restart")
def restart(run: FaultRun) -> None:
    """Stopped in mid-run, once with SIGTERM and once with kill -9; it comes back with its
    append-only file.
    """
    run.start_processes(workers=(8, 4))
    run.submit(12)
    for number in run.rng.sample([signal.SIGTERM, signal.SIGKILL], 2):
        run.wait_for_progress()
        run.send_signal(run.redis, number)
        run.wait(lambda: run.redis.exit_code is not None, "the end of Redis", 15)
        time.sleep(run.rng.uniform(0.5, 4.0))
        back = time.monotonic()
        run.start_redis()
        run.measure_recovery(run.progress(), "turns after Redis came back", 40, back)
    run.check_no_failures()


@row("redis-tail")
def tail(run: FaultRun) -> None:
    """Killed four times, and each time up to the last second of what it wrote is gone; the last
    time, everything was submitted and the run sealed. Whoever sees that it does not end gives the
    same command again.
    """
    run.start_processes(latency=0.3, workers=(8, 4))
    run.start_consumer(2)
    run.submit(14)
    for number in range(4):
        if number:
            run.wait_for_progress()
        run.cut_power()
        run.submit(14)
        run.measure_recovery(run.progress(), "turns after Redis came back", 60)
    run.check(run.lost_bytes > 0, "nothing was lost")


@row("redis-cut")
def cut(run: FaultRun) -> None:
    """Every connection is reset, six times."""
    run.start_processes(latency=0.5, workers=(8, 4), redis_proxy=True)
    run.start_consumer()
    run.submit(12)
    assert run.redis_proxy
    for _ in range(6):
        time.sleep(run.rng.uniform(0.2, 1.2))
        before = run.redis_proxy.connections
        ends = run.redis_proxy.reset_connections()
        run.measure_recovery(run.progress(), "turns after a reset", 40)
        time.sleep(0.2)
        run.count_fault(
            "resets after which clients connected again",
            int(ends > 0 and run.redis_proxy.connections > before),
        )
    run.check_no_failures()


@row("redis-slow")
def slow(run: FaultRun) -> None:
    """A reply takes 200 ms; then the network stands still for longer than a client waits, and late
    bytes arrive.
    """
    run.start_processes(latency=0.3, workers=(8, 4), redis_proxy=True)
    run.submit(10)
    assert run.redis_proxy
    run.redis_proxy.delay_s = 0.1
    run.measure_recovery(run.progress(), "turns over a slow network", 60)
    time.sleep(3)
    run.redis_proxy.delay_s = 0.0
    run.count_fault("slow networks", int(run.redis_proxy.delayed_chunks > 20))
    for seconds in (6.0, run.rng.uniform(1, 4)):
        held = run.redis_proxy.held_chunks
        run.redis_proxy.freeze()
        time.sleep(seconds)
        run.redis_proxy.thaw()
        run.measure_recovery(run.progress(), "turns after a standstill", 40)
        run.count_fault("standstills of the network", int(run.redis_proxy.held_chunks > held))
    run.check_no_failures()


@row("redis-silent")
def silent(run: FaultRun) -> None:
    """Every connection dies in silence, for good, and only new ones work: once under load, once
    with idle workers.
    """
    workers = run.start_processes(latency=0.3, workers=(8, 4), redis_proxy=True)
    run.expect_jobs("shop", range(12), 3)
    run.run_command(*run.submit_command(0, 11, 3))
    run.wait_for_progress()
    silence(run)
    run.measure_recovery(run.progress(), "turns after a silence under load", 30)
    run.wait_for_end()
    silence(run)
    since = time.monotonic()
    run.expect_jobs("shop", range(12, 18), 3)
    run.run_command(*run.submit_command(12, 17, 3, "--seal"))
    run.measure_recovery(
        lambda: all(map(run.leases_of, workers)), "all idle workers to play again", 40, since
    )
    run.check_no_failures()


def silence(run: FaultRun) -> None:
    """Silence every connection through the proxy."""
    assert run.redis_proxy
    run.count_fault("connections that died in silence", run.redis_proxy.silence(), 8)


@row("redis-stop")
def stop(run: FaultRun) -> None:
    """The server is frozen for longer than a lease. No worker could renew, so no lease may expire
    at once.
    """
    run.start_processes(workers=(8, 4))
    run.submit(10)
    run.wait_for_progress()
    run.send_signal(run.redis, signal.SIGSTOP)
    time.sleep(17)
    awake = time.monotonic()
    os.kill(run.redis.pid, signal.SIGCONT)
    run.measure_recovery(run.progress(), "turns after Redis continued", 40, awake)
    run.check_no_failures()


@row("redis-full")
def full(run: FaultRun) -> None:
    """Out of memory for some seconds: new work waits, and what is being played goes on."""
    run.start_processes(workers=(8, 4))
    run.submit(10)
    redis = ledger_of(run.client).redis
    for _ in range(2):
        run.wait_for_progress()
        redis.config_set("maxmemory", 1)
        run.count_fault("times that Redis refused a write", int(_refuses_a_write(run)))
        time.sleep(run.rng.uniform(2.0, 6.0))
        redis.config_set("maxmemory", 0)
        run.measure_recovery(run.progress(), "turns with memory again", 40)
    run.check_no_failures()


def _refuses_a_write(run: FaultRun) -> bool:
    try:
        ledger_of(run.client).redis.set("memory", 1)
    except OutOfMemoryError:
        return True
    return False


@row("redis-clock")
def clock(run: FaultRun) -> None:
    """The ledger's only clock jumps: an hour ahead, a day back, and another hour back as a worker
    dies.
    """
    at = run.make_clock_settable()
    victim, _ = run.start_processes(latency=0.4, workers=(8, 4))
    run.start_consumer()
    run.submit(20)
    for jump in (3600, -86400):
        run.wait_for_progress()
        set_clock(run, at, jump)
        run.measure_recovery(run.progress(), "turns after the jump", 40)
        time.sleep(run.rng.uniform(2.0, 4.0))  # time for a wrong expiry to happen
    stats = run.stats()
    run.check(
        not stats["failures"] and not stats["expired"], f"a jump cost budget: {stats['failures']}"
    )
    run.wait_for_leases(victim)
    held = run.freeze_with_leases(victim)
    run.send_signal(victim)
    start = time.monotonic()
    set_clock(run, at, -3600)
    run.start_worker(8, wait=False)
    run.check_leases_expire(held, start)
    run.measure_recovery(lambda: run.taken_over(held), "others to play them", 30, start)
    failures = run.stats()["failures"]
    run.check(
        failures == {"worker": len(held)},
        f"a death of a worker with {len(held)} jobs cost {failures}",
    )


def set_clock(run: FaultRun, at: Path, jump: int) -> None:
    """Move the clock of this Redis, and check that it moved."""

    def ahead() -> float:
        seconds, micros = ledger_of(run.client).redis.time()
        return float(seconds + micros / 1e6 - time.time())

    before = ahead()
    at.write_text(str(int(at.read_text()) + jump))
    time.sleep(0.3)
    run.count_fault("jumps of Redis's clock", int(abs(ahead() - before - jump) < 30))
