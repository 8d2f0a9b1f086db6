"""A worker that is frozen by one operation ends itself; one that works, or sleeps, does not."""

import subprocess
import sys

import pytest

START = "import time; from rollq_worker import frozen; frozen.FROZEN_S = 1.0; frozen.watch(); time.sleep(0.2)\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=120)


def test_what_holds_the_interpreter_is_ended_and_named() -> None:
    done = run("def bomb(): 9**9**9\nbomb()")
    assert done.returncode == 1
    assert "in bomb" in done.stderr


@pytest.mark.parametrize("code", ["time.sleep(2.5)", "end = time.time() + 2.5\nwhile time.time() < end: pass"])
def test_what_works_is_left_alone(code: str) -> None:
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")
