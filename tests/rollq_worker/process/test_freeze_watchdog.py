"""A worker that is frozen by one operation ends itself; one that works, or sleeps, does not."""

import subprocess
import sys

import pytest

START = """
import faulthandler, threading, time
from rollq_worker.process import freeze_watchdog

put_off, later = threading.Semaphore(0), faulthandler.dump_traceback_later

def counted(seconds, exit):
    later(seconds, exit=exit)
    put_off.release()

faulthandler.dump_traceback_later = counted
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=120)


def test_what_holds_the_interpreter_is_ended_and_named() -> None:
    # All of it inside, so that it is named though the machine stands still for longer than it may.
    done = run("frozen.FROZEN_S = 1.0\ndef bomb():\n  freeze_watchdog.watch()\n  put_off.acquire()\n  9**9**9\nbomb()")
    assert done.returncode == 1
    assert "in bomb" in done.stderr


@pytest.mark.parametrize("wait", ["put_off.acquire()", "while not put_off.acquire(blocking=False): pass"])
def test_what_works_is_left_alone(wait: str) -> None:
    """Its end is put off again and again, long before it would come."""
    done = run(f"frozen.FROZEN_S = 8.0\nfrozen.watch()\nfor _ in range(3):\n  {wait}")
    assert (done.returncode, done.stderr) == (0, "")
