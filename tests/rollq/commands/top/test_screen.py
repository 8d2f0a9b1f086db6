"""The frames of `rollq top`: plain, on a terminal of any size, and with hostile names."""

import io
import logging
import re
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rollq import cli
from rollq.commands import top as command
from rollq.commands.top.frame import Cell, Frame, Table, fitted, frame
from rollq.commands.top.screen import LiveScreen, Screen, open_screen, plain
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import READY, EngineUse, Wait, register
from rollq.snapshot.fleet import read_fleet
from tests.rollq.client import fleets
from tests.rollq.commands.conftest import Says
from tests.rollq.commands.lines import Terminal
from tests.rollq.groups import finish_groups
from tests.rollq.samples import claim, group

HOSTILE = "\x1b[31mEVIL\x1b]0;title\x07\u202eabc\n[bold red]x[/] \ud800 日本語"
WORKER = replace(
    fleets.WORKER,
    busy=1,
    waits=(Wait("r/g/0", "environment.step(get_order)", 12.0), Wait("r/g/1", "engine", 2.0)),
    engines=(EngineUse("http://a", READY, 1, 1, 0, 0.5),),
    turns_s=2.5,
    tokens_s=1234.0,
)


@pytest.fixture
def played(ledger: Ledger) -> Ledger:
    finish_groups(ledger, "done")
    ledger.submit(group("g", size=3))
    claim(ledger, "r/g/0")
    register(ledger.redis, WORKER)
    return ledger


def drawn(found: Frame, width: int, height: int) -> list[str]:
    """The lines of the frame on a terminal of that size, without colours."""
    stream = Terminal()
    screen = LiveScreen(stream)
    screen._console.size = (width, height)  # type: ignore[assignment]
    with screen:
        screen.show(found)
    last = stream.getvalue().rpartition("\x1b[2K")[2]  # what was drawn after all before was erased
    return [
        line.rstrip()
        for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).replace("\r", "").split("\n")
    ]


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def test_once_prints_everything_that_is_asked_of_it(played: Ledger, says: Says) -> None:
    said = says("top", "--once").out
    for part in (
        "1 worker, 1 engine   playing 1 of 4   2.5 turns/s   1,234 sampled tokens/s",
        "reward 1.000   stops done 2   0 dead",
        "holds it up: nothing",
        "http://a  ready  1         1        0       50%",
        "environment 1, engine 1, 12s at most",
    ):
        assert part in said
    assert re.search(r"^r +2/5 +1 +2 +0 +1.000 +1/1/0 ", said, re.M)


def test_json_lines(played: Ledger, says: Says) -> None:
    assert says("top", "--once", "--json", "--run", "r").json["tokens_s"] == 1234.0


def test_a_mistyped_run_is_named(says: Says) -> None:
    assert "no run 'q'" in says("top", "--run", "q", code=2).err


def test_what_others_have_written_is_only_text(played: Ledger, size: None) -> None:
    engines = (EngineUse(HOSTILE, HOSTILE, 1, 1, 0, 0.5),)
    waits = (Wait(HOSTILE, HOSTILE, 3.0),)
    found = read_fleet(played.redis)
    worker = replace(
        WORKER, name=HOSTILE, queues=(HOSTILE,), engine=HOSTILE, engines=engines, waits=waits
    )
    shown = frame(
        replace(found, workers=[worker], unreadable=[HOSTILE], lost={HOSTILE: 3.0}), {}, "redis://r"
    )
    for lines in (plain(shown), drawn(shown, 200, 60)):
        text = "\n".join(lines)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
        assert "\\x1b[31mEVIL" in text and "[bold red]" in text
        text.encode()


def many(number: int) -> Frame:
    tables = [
        Table(
            name,
            ("NAME", "COUNT"),
            [(Cell(f"{name}-{n}-{'x' * 40}"), Cell(str(n))) for n in range(number)],
            more=7,
        )
        for name in ("runs", "engines", "workers") * bool(number)
    ]
    return Frame([[Cell("one"), Cell("two")]], Cell("why " * 200), tables)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 20)])
@pytest.mark.parametrize("number", [0, 1, 5, 400])
def test_a_frame_fits_the_terminal(width: int, height: int, number: int, size: None) -> None:
    lines = drawn(many(number), width, height)
    assert len(lines) <= height and all(len(line) <= width for line in lines)
    if number == 400:
        assert len(lines) >= height - 2
        assert all(
            any(re.fullmatch(rf"and \d+ more {name}", line) for line in lines)
            for name in ("runs", "workers")
        )


def test_room_is_shared_by_tables_that_need_it() -> None:
    few = Table("few", ("A",), [(Cell("a"),)] * 3)
    many = Table("many", ("A",), [(Cell("a"),)] * 50, more=2)
    found = Frame([], Cell(""), [few, many])
    assert [(len(table.rows), left_out) for table, left_out in fitted(found, 24)] == [
        (3, 0),
        (17, 35),
    ]
    assert [len(table.rows) for table, _ in fitted(found, 0)] == [1, 1]
    assert [left_out for _, left_out in fitted(found, 500)] == [0, 2]


@pytest.mark.parametrize("hinder", ["no rich", "dumb terminal", "no terminal", "once"])
def test_plain_where_it_cannot_be_live(monkeypatch: pytest.MonkeyPatch, hinder: str) -> None:
    monkeypatch.setenv("TERM", "dumb" if hinder == "dumb terminal" else "xterm")
    if hinder == "no rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = io.StringIO() if hinder == "no terminal" else Terminal()
    assert type(open_screen(stream, live=hinder != "once")) is Screen


def test_plain_frames_and_trouble_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("rollq.commands.top.screen.time.monotonic", lambda: clock[0])
    stream = io.StringIO()
    screen = Screen(stream)
    for clock[0] in (0.0, 2.0, 4.0):
        screen.show(many(1))
    for clock[0] in (6.0, 8.0, 15.9, 16.1):
        screen.trouble("Redis is away")
    screen.show(many(1))  # it is back
    said = [line for line in stream.getvalue().splitlines() if line.startswith(("one", "rollq"))]
    assert said == ["one   two", "rollq: Redis is away", "rollq: Redis is away", "one   two"]


def test_it_goes_on_without_redis_and_the_last_frame_stays(
    played: Ledger, redis_url: str, size: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three looks: one that works, one while Redis is away, and the one at which Ctrl-C comes."""
    looks = iter([None, ConnectionRefusedError("refused"), KeyboardInterrupt()])

    def look(*of: Any) -> Any:
        error = next(looks)
        if isinstance(error, ConnectionRefusedError):
            raise module_error(str(error))
        if error is not None:
            raise error
        return read_fleet(*of)

    module_error = command.CONNECTION_ERRORS[0]
    monkeypatch.setattr(command, "read_fleet", look)
    monkeypatch.setattr(command, "REFRESH_S", 0.0)
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    assert cli.main(["top", "--redis", redis_url]) == 0
    last = stream.getvalue().rpartition("does not answer (refused), for 0 s")[2]
    assert "holds it up: " in last and "http://a" in last


def test_a_redis_that_does_not_answer_is_said_once_and_since_when(
    redis_url: str,
    size: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """rich would print what is logged above the frame, where it stays."""
    log = logging.getLogger("rollq")
    monkeypatch.setattr(log, "propagate", False)
    looks = iter([command.CONNECTION_ERRORS[1]("Timeout"), KeyboardInterrupt()])
    clock = [100.0]

    def look(*of: Any) -> Any:
        clock[0] += 5.0
        log.warning("it does not answer")
        raise next(looks)

    monkeypatch.setattr(command, "read_fleet", look)
    monkeypatch.setattr(command, "REFRESH_S", 0.0)
    monkeypatch.setattr(
        command, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: None)
    )
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    assert cli.main(["top", "--redis", redis_url]) == 0
    assert "does not answer (Timeout), for 5 s" in stream.getvalue()
    assert "it does not answer" not in stream.getvalue() + capsys.readouterr().err
