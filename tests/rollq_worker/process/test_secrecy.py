"""What other programs of the worker's user can read of it."""

import os
import subprocess
import sys
import tempfile
from shutil import copy, which

import pytest

PROGRAM = """
import os, subprocess
from rollq_worker.process.secrecy import hide_addresses, set_readable

def child(command):
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True).stdout

if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may read everything
set_readable(True)
assert "SECRET" in child("cat /proc/$PPID/environ; env")
set_readable(False)
hide_addresses()
assert child("cat /proc/$PPID/environ; env | grep SECRET; ls /proc/$PPID/fd") == ""
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_neither_its_variables_nor_those_of_its_children() -> None:
    run = [sys.executable, "-c", PROGRAM]
    subprocess.run(run, env={"ROLLQ_REDIS_URL": "redis://:SECRET@h/0"}, check=True, timeout=60)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="makes files of other users")
def test_no_command_becomes_the_user_of_a_file() -> None:
    def user(tool: str, before: str) -> str:
        run = f"subprocess.run(['{tool}', '-u'], user=65534)"
        program = f"import subprocess; from rollq_worker.process import secrecy; {before}; {run}"
        return subprocess.check_output([sys.executable, "-c", program], text=True).strip()

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        tool = copy(str(which("id")), folder)
        os.chown(tool, 65533, 65533)
        os.chmod(tool, 0o4755)
        assert (user(tool, "pass"), user(tool, "secrecy.keep_users()")) == ("65533", "65534")
