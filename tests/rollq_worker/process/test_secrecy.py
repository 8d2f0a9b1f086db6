"""What other programs of the worker's user can read of it."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, subprocess
from rollq_worker.process.secrecy import hide_addresses, hide_memory

def child(command):
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True).stdout

if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may read everything
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
assert "SECRET" in child("cat /proc/$PPID/environ; env")
hide_memory()
hide_addresses()
assert child("cat /proc/$PPID/environ; env | grep SECRET; ls /proc/$PPID/fd") == ""
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_neither_its_variables_nor_those_of_its_children() -> None:
    run = [sys.executable, "-c", PROGRAM]
    subprocess.run(run, env={"ROLLQ_REDIS_URL": "redis://:SECRET@h/0"}, check=True, timeout=60)
