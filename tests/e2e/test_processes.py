"""A worker of several processes: `rollq worker --processes N`."""

import os
import re
import signal
import subprocess

import pytest

from tests.e2e.stack import JOBS, Stack, check_all_delivered, stop, submit_groups
from tests.processes import alive


def workers(parent: subprocess.Popen[bytes]) -> list[int]:
    """The pids of the processes that became ready, in this order."""
    log = parent.log.read_text()  # type: ignore[attr-defined]
    return [int(pid) for pid in re.findall(r"rollq@\S+-(\d+): ready", log)]


def of_processes(stack: Stack, count: int) -> subprocess.Popen[bytes]:
    parent = stack.worker(4, "--processes", f"{count}")
    stack.wait(lambda: len(workers(parent)) == count, 150, "all processes")
    return parent


@pytest.mark.promise
def test_a_process_that_is_killed_is_followed_by_another(stack: Stack):
    stack.engine("--latency", "0.4")
    parent = of_processes(stack, 3)
    submit_groups(stack, "kill")
    stack.wait(lambda: stack.stats("kill")["leased"] == 12, 150, "three times four leases")
    victim = workers(parent)[0]
    os.kill(victim, signal.SIGKILL)
    stack.wait(lambda: len(workers(parent)) == 4, 150, "another process")
    assert parent.log.read_text().count(f"process {victim} ended (SIGKILL)") == 1  # type: ignore[attr-defined]
    stats = check_all_delivered(stack, "kill", JOBS)
    assert 0 < stats["failures"]["worker"] <= 4
    stop(parent)
    assert not any(map(alive, workers(parent)))


def test_a_signal_drains_them_all(stack: Stack):
    stack.engine("--latency", "30")
    parent = of_processes(stack, 2)
    submit_groups(stack, "drain")
    stack.wait(lambda: stack.stats("drain")["leased"] == 8, 150, "two times four leases")
    calm = stop(parent)
    stats = stack.stats("drain")
    assert (stats["leased"], stats["released"]) == (0, 8) or not calm
    assert not stats["failures"] and not any(map(alive, workers(parent)))


def test_an_error_at_the_start_is_said_once(stack: Stack):
    done = stack.run("worker", "--processes", "4", "--tokenizer", "/nowhere")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    broker = stack.run("worker", "--processes", "4", "--broker", "redis://127.0.0.1:1/0")
    assert broker.returncode == 1 and broker.stderr.count("no broker at") == 1, broker.stderr
