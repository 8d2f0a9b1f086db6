"""The parent of several processes, tested on small ones that play nothing."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import alive
from tests.waiting import until

PROGRAM = """
import os, sys, time
from pathlib import Path
from rollq_worker.process.parent import Parent, own_alive_file
{before}
parent = Parent({count}, {alive_file})
number = parent.fork()
os.write(1, f"{{number}} {{os.getpid()}}\\n".encode())
{child}
time.sleep(60)
"""


class Family:
    """A parent with its children, which end with the block."""

    def __init__(
        self,
        folder: Path,
        child: str = "",
        count: int = 2,
        alive_file: str = "None",
        before: str = "",
    ) -> None:
        self.out = folder / "out"
        code = PROGRAM.format(child=child, count=count, alive_file=alive_file, before=before)
        with self.out.open("wb") as out:
            self.parent = subprocess.Popen(
                [sys.executable, "-c", code], stdout=out, stderr=subprocess.STDOUT
            )

    def started(self) -> list[tuple[int, int]]:
        """Number and pid of each child so far."""
        lines = re.findall(r"^(\d+) (\d+)$", self.out.read_text(), re.MULTILINE)
        return [(int(number), int(pid)) for number, pid in lines]

    def await_children(self, count: int) -> list[int]:
        until(lambda: len(self.started()) >= count)
        return [pid for _, pid in self.started()]

    def __enter__(self) -> "Family":
        return self

    def __exit__(self, *error: object) -> None:
        self.parent.kill()
        self.parent.wait(30)


def test_one_that_dies_again_and_again_starts_less_and_less_often(tmp_path: Path) -> None:
    with Family(tmp_path, "if number == 0: os._exit(7)") as family:
        began = time.monotonic()
        family.await_children(4)
        assert time.monotonic() - began >= 1.0 + 2.0
        assert sorted(number for number, _ in family.started()) == [0, 0, 0, 1]
        said = family.out.read_text()
        assert "(exit code 7); another one starts in 1 s" in said
        assert "(exit code 7); another one starts in 2 s" in said


def test_a_wrong_setting_ends_them_all(tmp_path: Path) -> None:
    with Family(tmp_path, "if number == 1: sys.exit(2)", count=3) as family:
        assert family.parent.wait(30) == 2
        assert not any(map(alive, family.await_children(3)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_stops_them_all(tmp_path: Path, number: int) -> None:
    with Family(tmp_path) as family:
        children = family.await_children(2)
        family.parent.send_signal(number)
        assert family.parent.wait(30) == 0
        assert not any(map(alive, children))


def test_a_second_signal_kills_them(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'deaf')"
    with Family(tmp_path, stubborn, count=1) as family:
        until(lambda: "deaf" in family.out.read_text())
        family.parent.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            family.parent.wait(1.0)
        family.parent.terminate()
        assert family.parent.wait(30) == 1
        assert not any(map(alive, family.await_children(1)))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they outlive it")
def test_a_parent_that_is_killed_stops_its_children(tmp_path: Path) -> None:
    with Family(tmp_path) as family:
        children = family.await_children(2)
        family.parent.kill()
        until(lambda: not any(map(alive, children)))


def test_the_alive_file_is_as_old_as_the_oldest_child_says(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    file.touch()
    path = f"Path({str(file)!r})"
    with Family(tmp_path, f"own_alive_file({path}, number).touch()", alive_file=path) as family:
        family.await_children(2)
        until(lambda: len(list(tmp_path.glob("alive.*"))) == 2)
        os.utime(tmp_path / "alive.1", (1000, 1000))
        until(lambda: file.stat().st_mtime == 1000)


def test_files_of_an_earlier_workers_children_do_not_make_the_alive_file_old(
    tmp_path: Path,
) -> None:
    file = tmp_path / "alive"
    for name in ("alive", "alive.0", "alive.1"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "alive.1", (1000, 1000))
    with Family(tmp_path, alive_file=f"Path({str(file)!r})") as family:
        family.await_children(2)
        time.sleep(0.3)
        assert file.stat().st_mtime > 1000


def test_a_fork_that_fails_is_tried_again(tmp_path: Path) -> None:
    failing = """
import rollq_worker.process.parent
fork, fails = os.fork, [2]
def fork_third():
    if not fails or fails[0] > 0:
        fails[0] -= 1
        return fork()
    os.fork = fork
    raise OSError(11, "no process left")
os.fork = fork_third
"""
    with Family(tmp_path, "if number == 0: os._exit(7)", before=failing) as family:
        family.await_children(3)
        assert "no further process: [Errno 11] no process left; another try in" in (
            family.out.read_text()
        )
        assert family.parent.poll() is None


def test_an_exit_of_foreign_code_after_long_is_no_wrong_setting(tmp_path: Path) -> None:
    soon = "import rollq_worker.process.parent as module; module.STEADY_S = 0.0"
    with Family(tmp_path, "if number == 0: os._exit(2)", before=soon) as family:
        family.await_children(3)
        assert family.parent.poll() is None


def test_it_checks_where_ends_of_children_are_ignored() -> None:
    """Linux then keeps no exit code for it."""
    code = "from rollq_worker.process.parent import Parent; Parent(2).check(lambda: None)"
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        f"os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    )
    command = [sys.executable, "-c", ignoring]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
