"""The display of long work, plain and live."""

import io
import logging
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from rollq.commands import progress
from rollq.commands.progress import LiveProgressDisplay, ProgressDisplay, open_progress
from tests.rollq.commands.lines import Terminal


def test_plain_lines_come_now_and_then_and_once_more_at_the_end() -> None:
    stream = io.StringIO()
    with open_progress(stream) as display:
        display.say("begun")
        for i in range(1000):
            display.show(i, 1000, {"reward": f"0.{i}"})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "begun"
    assert lines[1] == "0/1000  reward 0.0"
    assert lines[-1] == "999/1000  reward 0.999"
    assert len(lines) < 100


def test_plain_lines_do_not_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    stream = io.StringIO()
    with open_progress(stream) as display:
        for done in (1, 1, 2, 2):
            display.show(done, 2, {})
    assert [line.strip() for line in stream.getvalue().splitlines()] == ["1/2", "2/2"]


def test_a_terminal_gets_a_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with open_progress(stream) as display:
        assert isinstance(display, LiveProgressDisplay)
        display.say("[bold]not markup[/bold] http://127.0.0.1")
        display.show(1, 2, {"reward": "0.1 [red]"})
        display.show(2, 2, {"reward": "0.5 [red]"})
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "[bold]not markup[/bold] http://127.0.0.1" in said
    assert "2/2" in said
    assert "0.5 [red]" in said


@pytest.mark.parametrize("kind", [ProgressDisplay, LiveProgressDisplay])
def test_foreign_words_cannot_control_the_terminal(kind: type[ProgressDisplay]) -> None:
    stream = Terminal()
    with kind(stream) as display:
        logging.getLogger("rollq").warning("no %s", "\x1b]0;title\x07")
        display.show(1, 2, {"waits": "\x1b]0;title\x07"})
    said = stream.getvalue()
    assert "\x1b]" not in said and said.count("\\x1b]0;title\\x07") >= 2


@pytest.mark.parametrize("hinder", ["no rich", "dumb terminal"])
def test_plain_where_it_cannot_be_live(monkeypatch: pytest.MonkeyPatch, hinder: str) -> None:
    monkeypatch.setenv("TERM", "dumb" if hinder == "dumb terminal" else "xterm")
    if hinder == "no rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    assert type(open_progress(Terminal())) is ProgressDisplay


SHOWN = "from rollq.commands.progress import open_progress"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)])
def test_a_signal_gives_the_cursor_back(number: signal.Signals, code: int) -> None:
    """On a real terminal."""
    lines = (
        f"import os, sys, time; {SHOWN}",
        "with open_progress(sys.stderr) as display:",
        "    display.show(1, 2, {})",
        f"    os.kill(os.getpid(), {int(number)})",
        "    time.sleep(60)",
    )
    ours, theirs = pty.openpty()
    command, environment = [sys.executable, "-c", "\n".join(lines)], os.environ | {"TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stderr=theirs, env=environment) as one:
        os.close(theirs)
        said = b""
        while part := _read(ours):
            said += part
    os.close(ours)
    assert said.rfind(b"\x1b[?25h") > said.rfind(b"\x1b[?25l") >= 0
    assert one.returncode in (code, -number)  # Python itself ends by a SIGINT that it did not catch


def _read(terminal: int) -> bytes:
    """Empty once the other side is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
