"""Child processes: real ones, and none that outlives its parent."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollq.processes.child import Child
from tests.processes import alive
from tests.waiting import until

SLEEPER = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(600)"]


def test_a_child_is_stopped_and_its_output_is_kept(tmp_path: Path) -> None:
    child = Child("sleeper", SLEEPER, log=tmp_path / "log")
    until(lambda: child.tail() == "up")
    assert child.exit_code is None
    child.stop()
    child.stop()
    assert child.exit_code == -signal.SIGTERM
    assert "sleeper ended early (signal SIGTERM)" in child.how_it_ended()
    assert "| up" in child.how_it_ended()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ignores = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', "
        "flush=True); time.sleep(600)"
    )
    child = Child("deaf", [sys.executable, "-S", "-c", ignores], log=tmp_path / "log")
    until(lambda: child.tail() == "up")
    child.stop(grace_s=0.2)
    assert child.exit_code == -signal.SIGKILL


PARENT = """
import sys, time
from pathlib import Path
from rollq.processes.child import Child
child = Child("sleeper", [sys.executable, "-S", "-c", "import time; time.sleep(600)"], \
log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's way is Linux's")
def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait(10)
    until(lambda: not alive(pid))
