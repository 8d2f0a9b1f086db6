"""A worker whose interpreter is locked ends itself; one that works or sleeps does not."""

import subprocess
import sys

import pytest

START = """
import faulthandler, threading, time
from rollq_worker.process import shutdown

postponed, dump_traceback_later = threading.Semaphore(0), faulthandler.dump_traceback_later

def counted(seconds, exit):
    dump_traceback_later(seconds, exit=exit)
    postponed.release()

faulthandler.dump_traceback_later = counted
"""

LOCKED = """
shutdown.FREEZE_LIMIT_S = 1.0

def bomb():  # does all of it, so that it is named even if the machine stalls for longer than the \
limit
    shutdown.end_when_frozen()
    postponed.acquire()
    9**9**9

bomb()
"""

WORKING = """
shutdown.FREEZE_LIMIT_S = 8.0
shutdown.end_when_frozen()
for _ in range(3):
    {wait}
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + code], capture_output=True, text=True, timeout=120
    )


def test_a_locked_interpreter_is_ended_and_named() -> None:
    done = run(LOCKED)
    assert done.returncode == 1
    assert "in bomb" in done.stderr


@pytest.mark.parametrize(
    "wait", ["postponed.acquire()", "while not postponed.acquire(blocking=False): pass"]
)
def test_a_working_interpreter_is_left_alone(wait: str) -> None:
    """The end is postponed every tenth of the limit."""
    done = run(WORKING.format(wait=wait))
    assert (done.returncode, done.stderr) == (0, "")
