"""Trainers that are killed, frozen, or acknowledge twice; producers that are killed in
mid-submission.
"""

import os
import signal
import time

from rollq.processes.child import Child
from tests.chaos.fault_run import FaultRun
from tests.chaos.processes import RUN
from tests.chaos.rows import row

HOLD_S = 60.0


def start_trainer(run: FaultRun, *flags: str) -> Child:
    """Start a trainer that takes one batch of two groups. It writes down what it acknowledges."""
    return run.start_command(
        "trainer",
        "--run",
        RUN,
        "--out",
        str(run.out),
        *flags,
        module="tests.chaos.misbehaving_trainer",
    )


def wait_for_word(run: FaultRun, child: Child, word: str, within_s: float = 40.0) -> None:
    run.wait(lambda: word in child.log.read_text(), f"a trainer that says {word}", within_s)


@row("trainer-kill", deadline_s=320.0)
def kill(run: FaultRun) -> None:
    """One trainer is killed with a batch and one is frozen beyond its hold: both batches come
    again, once each.

    The frozen trainer continues and acknowledges a batch that is no longer its own: refused.
    """
    run.start_processes(latency=0.1, workers=(8,))
    run.submit(8)
    dead, frozen = start_trainer(run, "--then", "hold"), start_trainer(run, "--then", "ack-late")
    for child in (dead, frozen):
        wait_for_word(run, child, "holding")
    run.send_signal(dead)
    run.send_signal(frozen, signal.SIGSTOP)
    start = time.monotonic()
    run.wait_for_end()
    run.start_consumer()
    run.wait(
        lambda: run.stats()["delivered"] >= len(run.expected), "both batches again", HOLD_S + 20
    )
    run.recovered_s.append(time.monotonic() - start)
    os.kill(frozen.pid, signal.SIGCONT)
    wait_for_word(run, frozen, "refused")
    run.check(
        run.stats()["redelivered"] == 4,
        f"{run.stats()['redelivered']} groups were handed out again",
    )


@row("trainer-acks-twice")
def twice(run: FaultRun) -> None:
    """Three trainers share a run and acknowledge every batch three times; each group goes to one of
    them.
    """
    run.start_processes(latency=0.1, workers=(8,))
    run.submit(9)
    for _ in range(3):
        child = start_trainer(run, "--then", "ack-thrice")
        wait_for_word(run, child, "done")
        run.count_fault(
            "batches acknowledged three times",
            int(child.log.read_text().count("acknowledged again") == 2),
        )


@row("pull-kill", deadline_s=400.0)
def pull(run: FaultRun) -> None:
    """`rollq pull` is killed eight times, at any moment, and restarted with the same file."""
    run.start_processes(latency=0.1, workers=(8,))
    run.submit(60, 2)
    killed = 0
    for _ in range(8):
        puller = run.start_consumer(60)
        run.wait(lambda: run.unacknowledged() > 0, "a group", 20)
        time.sleep(run.rng.uniform(0.4, 1.2))
        killed += run.try_signal(puller, signal.SIGKILL)
        start = time.monotonic()
    run.count_fault("consumers that were killed", killed, 4)
    run.start_consumer()
    run.measure_recovery(
        lambda: run.stats()["delivered"] >= len(run.expected), "all groups", HOLD_S + 30, start
    )


@row("producer-kill")
def producer(run: FaultRun) -> None:
    """`rollq submit --set ahead=2` is killed in mid-submission; the same command runs again until
    it is done.
    """
    run.start_processes(latency=0.05, workers=(8,))
    run.start_consumer(2)
    run.expect_jobs("shop", range(16), 2)
    line = run.submit_command(0, 15, 2, "--set", "ahead=2", "--seal", "--json")
    killed = 0
    for _ in range(4):
        submit = run.start_command("submit", *line)
        before = run.stats()["submitted"]
        run.wait(
            lambda b=before, s=submit: s.exit_code is not None or run.stats()["submitted"] > b,  # type: ignore[misc]
            "a submission",
            30,
        )
        time.sleep(run.rng.uniform(0.0, 0.4))
        killed += run.try_signal(submit, signal.SIGKILL)
    run.count_fault("producers that were killed", killed)
    run.check(
        run.stats()["submitted"] < len(run.expected), "a producer was done before it was killed"
    )
    start = time.monotonic()
    last = run.start_command("submit", *line)
    run.wait(lambda: last.exit_code is not None, "the last submission", 60)
    run.check(last.exit_code == 0, f"the last submission failed: {last.tail()}")
    run.recovered_s.append(time.monotonic() - start)
