"""A check of environments that hang, or end their process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollq_worker.commands.env import own_process
from rollq_worker.environments import files
from tests.waiting import until

WORLD = """
import os, time
from rollq_worker.environments.shop import load as shop

class World:
    def __init__(self):
        self.shop = shop(None)
        self.name = self.version = "world"
        self.splits, self.task, self.longest_open_s = self.shop.splits, self.shop.task, 0.5

    def open(self, *which):
        {open}
        return Episode(self.shop.open(*which))

class Episode:
    longest_step_s = longest_grade_s = 0.5

    def __init__(self, shop):
        self.shop = shop
        self.tools, self.system_prompt, self.reset = shop.tools, shop.system_prompt, shop.reset

    def step(self, action):
        {step}
        return self.shop.step(action)

    def grade(self):
        {grade}
        return self.shop.grade()

    def close(self):
        {close}

def load(variant):
    {load}
    return World()
"""


def world(folder: Path, monkeypatch: pytest.MonkeyPatch, **lines: str) -> str:
    """The name of the shop's environment with these lines in its functions."""
    monkeypatch.setenv(files.FILES.variable, "")
    parts = {"open": "pass", "step": "pass", "grade": "pass", "close": "pass", "load": "pass"}
    path = folder / "world.py"
    path.write_text(WORLD.format(**parts | lines))
    return files.add_file(str(path))


def checked(env: str) -> own_process.Checked:
    return own_process.check(env, None, [0, 1], 2, lambda now: None)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ({}, r"$"),
        ({"step": "time.sleep(60)"}, r"task 0: step\(\w+\) took longer than 0.5 s \(\S+.py:23\)"),
        ({"step": "while True: pass"}, r"task 0: step\(\w+\) took longer .*:23\)"),
        # the interpreter stays locked
        ({"step": "sum(range(10**12))"}, r"task 0: step\(\w+\) took longer .*:23\)"),
        ({"open": "time.sleep(60)"}, r"task 0: open\(\) took longer than 0.5 s \(\S+.py:12\)"),
        ({"grade": "time.sleep(60)"}, r"task 0: grade took longer than 0.5 s \(\S+.py:27\)"),
        ({"step": "os._exit(3)"}, r"task 0: step\(\w+\) ended the process with exit code 3"),
        ({"step": "os.abort()"}, r"task 0: step\(\w+\) ended the process \(SIGABRT\)"),
    ],
)
def test_a_call_that_does_not_return(
    lines: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = checked(world(tmp_path, monkeypatch, **lines)).report
    assert re.match(says, "\n".join(report.lines)), report.lines
    assert (report.cut_short == "") == (lines == {})


def test_an_error_such_as_that_of_a_cancelled_coroutine_is_a_problem_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "import asyncio; raise asyncio.CancelledError('gone')"
    report = checked(world(tmp_path, monkeypatch, step=step)).report
    [line] = report.lines
    assert re.match(r"task 0: CancelledError: gone \(\S+.py:23, in the call", line)
    assert report.played == 2 and not report.cut_short


def test_a_load_that_does_not_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(own_process.SettingsError, match=r"loading world@.* with exit code 3"):
        checked(world(tmp_path, monkeypatch, load="os._exit(3)"))


@contextmanager
def command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, close: str
) -> Iterator["tuple[subprocess.Popen[bytes], Path]"]:
    """`rollq env check` in a process group of its own, in a step; and the environment's log."""
    log = folder / "log"
    log.touch()
    note = f"print({{!r}}, file=open({str(log)!r}, 'a'))".format
    env = world(
        folder,
        monkeypatch,
        open=f"Episode.longest_step_s = 60; {note('open')}",
        step=f"{note('step')}; time.sleep(60)",
        close=f"{note('close')}; {close}; {note('closed')}",
    )
    line = [sys.executable, "-m", "rollq", "env", "check", env]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        until(lambda: "step" in log.read_text())
        yield process, log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_a_signal_ends_the_check_and_closes_the_environment(
    kill: Callable[[int, int], None], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with command(tmp_path, monkeypatch, "time.sleep(0.3)") as (process, log):
        kill(process.pid, number)
        assert process.wait(30) in (130, 143)
    assert log.read_text().split() == ["open", "close", "closed", "open", "step", "close", "closed"]


def test_a_second_signal_ends_a_close_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = f"time.sleep(60 if 'step' in open({str(tmp_path / 'log')!r}).read() else 0)"
    with command(tmp_path, monkeypatch, hang) as (process, log):
        os.killpg(process.pid, signal.SIGINT)
        until(lambda: log.read_text().endswith("step\nclose\n"))
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
