"""Users and environments that fail, stall, raise or hang: each costs its own job an attempt, and no
other job.
"""

import json
import time

from tests.chaos.engine_proxy import CHAT
from tests.chaos.fault_run import LEASE_S, FaultRun
from tests.chaos.rows import row
from tests.processes import alive

USER = {"kind": "openai", "endpoint": "user", "model": "replay", "timeout_s": 2.0, "retries": 2}


@row("user-fails")
def fails(run: FaultRun) -> None:
    """The user's endpoint answers a quarter of the requests with errors, resets and garbage."""
    run.start_processes(workers=(8, 4))
    kinds = ("broken", "reset", "half", "html", "empty", "full")
    run.engine_proxy.fault = lambda path: (
        run.rng.choice(kinds) if path == CHAT and run.rng.random() < 0.25 else ""
    )
    run.submit(8, 3, "--set", f"user={json.dumps(USER)}")
    run.measure_recovery(run.progress(), "turns with a failing user", 40)
    run.wait_for_end()
    run.count_fault("requests to the user that went wrong", run.engine_proxy.damaged.total(), 5)


@row("user-stalls")
def stalls(run: FaultRun) -> None:
    """The user's endpoint answers no request for some seconds, then nine in ten."""
    run.start_processes(workers=(8, 4))
    run.submit(8, 3, "--set", f"user={json.dumps(USER)}")
    run.wait_for_progress()
    run.engine_proxy.fault = lambda path: "stall" if path == CHAT else ""
    time.sleep(run.rng.uniform(3.0, 6.0))
    run.engine_proxy.fault = lambda path: "stall" if path == CHAT and run.rng.random() < 0.1 else ""
    run.measure_recovery(run.progress(), "turns with a user that sometimes stalls", 40)
    run.wait_for_end()
    run.count_fault(
        "requests to the user that were left unanswered", run.engine_proxy.damaged.total(), 5
    )


@row("env-raises")
def raises(run: FaultRun) -> None:
    """Three tasks raise once. A fourth raises every time: its jobs die, and their group
    is dropped.
    """
    bad = run.rng.sample(range(8), 4)
    for task in bad[:3]:
        (run.faults_ordered / f"raise.{task}.0").touch()
    for n in range(20):
        (run.faults_ordered / f"raise.{bad[3]}.{n:02}").touch()
    run.start_processes(workers=(8, 4))
    run.submit(8, 3, env="chaos")
    run.measure_recovery(run.has_ended, "the end of all jobs", within_s=1e9)
    failed = run.stats()["failures"].get("env", 0)
    run.count_fault("steps that raised", min(run.environment_faults("raise"), failed), 9)
    run.expected_dead = {f"chaos/chaos.train.{bad[3]}/{n}" for n in range(3)}


@row("env-hangs")
def hangs(run: FaultRun) -> None:
    """Three steps sleep for a minute, while the jobs have ten seconds per attempt."""
    for task in run.rng.sample(range(8), 3):
        (run.faults_ordered / f"hang.{task}.0").touch()
    run.start_processes(workers=(8, 4))
    run.submit(8, 3, "--set", "budget.deadline_s=10", env="chaos")
    run.measure_recovery(run.has_ended, "the end of all jobs", within_s=1e9)
    stats = run.stats()
    run.count_fault(
        "steps that hung", min(run.environment_faults("hang"), stats["failures"].get("env", 0)), 3
    )
    run.check(stats["failures"] == {"env": 3}, f"three steps that hung cost {stats['failures']}")


@row("env-holds")
def holds(run: FaultRun) -> None:
    """A step holds the interpreter for longer than a lease: jobs go on elsewhere, and late writes
    do not count.
    """
    run.start_processes(workers=(4, 4))
    (run.faults_ordered / f"hold.{run.rng.randrange(8)}.0").touch()
    run.submit(8, 3, env="chaos")
    run.wait(lambda: run.environment_faults("hold") == 1, "a step that holds the interpreter", 60)
    start = time.monotonic()
    run.wait(
        lambda: run.stats()["expired"] >= 1, "the expiry of a held worker's leases", LEASE_S + 10
    )
    run.measure_recovery(run.progress(), "turns elsewhere", 30, start)
    run.wait_for_lost_leases(40)
    run.count_fault("leases that a held interpreter lost", run.stats()["expired"])


@row("env-isolated")
def isolated(run: FaultRun) -> None:
    """Isolated environments: four steps hold their interpreter for ever, and one of their workers
    is killed.

    The other three cost their jobs one attempt, and no other job anything. No process outlives its
    worker.
    """
    for task in (0, 5, 6, 7):
        (run.faults_ordered / f"spin.{task}.0").touch()
    isolate = {"ROLLQ_ISOLATE": "chaos"}
    run.start_processes(workers=())
    victim = run.start_worker(6, env=isolate)
    run.submit(8, 3, "--set", "budget.deadline_s=10", env="chaos")
    run.wait(lambda: run.environment_faults("spin") == 1, "a step without end", 30)
    (endless,) = run.faults_done.glob("spin.*")
    time.sleep(run.rng.uniform(0.3, 1.5))
    held = run.freeze_with_leases(victim)
    run.check(
        alive(pid := int(endless.read_text())), "the fault did not happen: the step has ended"
    )
    run.send_signal(victim)
    start = time.monotonic()
    run.start_worker(8, env=isolate, wait=False)
    run.wait(lambda: not alive(pid), "the end of a process whose worker was killed", 10)
    run.wait(
        lambda: run.stats()["failures"].get("env", 0) >= 3, "three steps that were given up", 90
    )
    run.measure_recovery(
        lambda: run.taken_over(held), "others to play a dead worker's jobs", LEASE_S + 30, start
    )
    run.wait_for_end()
    failures = run.stats()["failures"]
    run.count_fault("steps that held their interpreter", run.environment_faults("spin"), 4)
    run.check(
        failures == {"env": 3, "worker": len(held)},
        f"a death with {len(held)} jobs, and three steps: {failures}",
    )
