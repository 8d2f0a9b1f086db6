"""Workers that are killed, stopped, frozen, out of memory, or out of time."""

import os
import signal
import time

from rollq.processes.child import Child
from tests.chaos.fault_run import EXIT_S, LEASE_S, SLACK_S, FaultRun
from tests.chaos.rows import row


@row("worker-kill")
def kill(run: FaultRun) -> None:
    """kill -9 while it plays jobs; their leases expire."""
    victim, _ = run.start_processes(latency=0.5, workers=(8, 4))
    run.submit(10)
    run.wait_for_leases(victim)
    time.sleep(run.rng.uniform(0.0, 1.5))
    held = run.freeze_with_leases(victim, 4)
    run.send_signal(victim)
    run.max_regenerated = len(held)
    start = time.monotonic()
    run.start_worker(8)
    run.check_leases_expire(held, start)
    run.measure_recovery(lambda: run.taken_over(held), "others to play them", 30, start)


@row("worker-sigterm")
def sigterm(run: FaultRun) -> None:
    """Three workers are told to stop while they play: each exits within 5 s, and no token is
    sampled again.
    """
    *victims, _ = run.start_processes(latency=1.0, workers=(4, 4, 4, 8))
    run.submit(10)
    run.max_regenerated = 0
    for victim, number in zip(
        victims, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True
    ):
        held = run.wait_for_leases(victim, 2)
        run.send_signal(victim, number)
        start = time.monotonic()
        check_exit(run, victim)
        run.check(run.returned(held), "a worker exited and still holds jobs")
        run.measure_recovery(
            lambda held=held: run.taken_over(held), "others to play them", 30, start
        )  # type: ignore[misc]


def check_exit(run: FaultRun, worker: Child) -> None:
    """Wait until it exits, with code 0 and within 5 s."""
    start = time.monotonic()
    run.wait(lambda: worker.exit_code is not None, "a worker's exit", 20)
    took = time.monotonic() - start
    run.check(took <= EXIT_S + SLACK_S, f"a worker exited {took:.1f} s after its signal")
    run.check(worker.exit_code == 0, f"a worker exited with {worker.exit_code}")


@row("worker-stop")
def stop(run: FaultRun) -> None:
    """Frozen for longer than its lease, then continued: nothing that it still writes counts."""
    victim, _ = run.start_processes(latency=0.5, workers=(8, 8))
    run.submit(10)
    run.wait_for_leases(victim)
    run.wait_for_progress()
    run.send_signal(victim, signal.SIGSTOP)
    start = time.monotonic()
    held = run.freeze_with_leases(victim, 4)
    run.measure_recovery(
        lambda: run.taken_over(held), "others to play a frozen worker's jobs", LEASE_S + 30, start
    )
    os.kill(victim.pid, signal.SIGCONT)
    run.wait_for_lost_leases(30)
    run.max_regenerated = len(held)


@row("worker-oom")
def oom(run: FaultRun) -> None:
    """An environment exhausts the memory: three workers are killed in mid-step, a fourth step gets
    a MemoryError.
    """
    tasks = run.rng.sample(range(8), 4)
    for n, task in enumerate(tasks):
        (run.faults_ordered / f"{'memory' if n == 3 else 'die'}.{task}.0").touch()
    workers = run.start_processes(workers=(4, 4))
    run.submit(8, env="chaos")
    killed = 0
    start = time.monotonic()
    while time.monotonic() - start < 60 and (
        any(run.faults_ordered.iterdir()) or run.ended() < len(run.expected)
    ):
        for n, worker in enumerate(workers):  # as an orchestrator does
            if worker.exit_code is not None:
                killed += worker.exit_code == 137
                workers[n] = run.start_worker(4, wait=False)
        time.sleep(0.2)
    run.count_fault("workers that were killed", killed, 3)
    run.count_fault("steps out of memory", run.stats()["failures"].get("env", 0))
    run.recovered_s.append(time.monotonic() - start)


@row("worker-clock")
def clock(run: FaultRun) -> None:
    """A worker's clock is a day ahead, then a day behind, every two seconds; another worker is
    killed meanwhile.

    That clock stamps journals and logs. Leases and deadlines use others.
    """
    (victim,) = run.start_processes(latency=0.4, workers=(4,))
    skewed = run.start_worker(8, env={"CHAOS_SKEW_S": "86400"})
    run.submit(10)
    run.wait_for_leases(victim, 2)
    time.sleep(run.rng.uniform(0.5, 1.5))
    held = run.freeze_with_leases(victim)
    run.send_signal(victim)
    start = time.monotonic()
    run.measure_recovery(
        lambda: run.taken_over(held),
        "a worker with a wrong clock to take over",
        LEASE_S + 30,
        start,
    )
    run.wait_for_end()
    jumps = run.clock_jumps.read_text().splitlines() if run.clock_jumps.exists() else []
    run.count_fault(
        "jumps of the worker's clock", sum(line.startswith(f"{skewed.pid} ") for line in jumps), 3
    )


@row("worker-all")
def every(run: FaultRun) -> None:
    """All workers at once: one is frozen, one is killed, one is told twice to stop."""
    workers = run.start_processes(latency=0.5, workers=(4, 4, 4))
    run.submit(10)
    for worker in workers:
        run.wait_for_leases(worker, 2)
    time.sleep(run.rng.uniform(0.3, 1.2))
    held = [run.leases_of(worker) for worker in workers]
    run.check(
        all(held), f"the fault did not happen: the workers had {[len(some) for some in held]} jobs"
    )
    run.send_signal(workers[0])
    run.send_signal(workers[1], signal.SIGSTOP)
    run.send_signal(workers[2], signal.SIGTERM)
    time.sleep(0.2)
    if workers[2].exit_code is None:
        os.kill(workers[2].pid, signal.SIGTERM)  # exits at once; its leases expire
    start = time.monotonic()
    run.start_worker(12)
    everything = [one for some in held for one in some]
    run.measure_recovery(
        lambda: run.taken_over(everything),
        "a new worker to take everything over",
        LEASE_S + 30,
        start,
    )
    os.kill(workers[1].pid, signal.SIGCONT)


@row("worker-big", deadline_s=360.0)
def big(run: FaultRun) -> None:
    """A worker of 128 jobs, while a reply takes half a minute, is told to stop; then its successor
    is killed.
    """
    (first,) = run.start_processes(latency=30.0, workers=(128,))
    run.submit(32, 4)
    run.wait(lambda: run.stats()["leased"] == 128, "128 leases", 60)
    time.sleep(2)
    second = run.start_worker(128)
    held = run.leases_of(first)
    run.send_signal(first, signal.SIGTERM)
    check_exit(run, first)
    run.check(run.returned(held), "a worker exited and still holds jobs")
    run.wait(lambda: len(run.leases_of(second)) >= 100, "another worker to play them", 30)
    run.start_worker(128)
    held = run.leases_of(second)
    run.send_signal(second)
    start = time.monotonic()
    run.kill_engine()
    run.latency = 0.05
    run.restart_engine()
    run.check_leases_expire(held, start)
    run.measure_recovery(lambda: run.taken_over(held), "a third worker to play them", 30, start)
