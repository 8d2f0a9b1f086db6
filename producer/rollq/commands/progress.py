"""The progress of long work: a live table on a terminal with rich installed, a plain line every two
seconds elsewhere.

Both show how much is done and a few named facts. What rollq logs as a warning meanwhile is a line
that stays. SIGTERM ends the work as Ctrl-C does, so that the terminal gets its cursor back. Foreign
words cannot control it. Knows nothing of runs or jobs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn, TextIO

from rollq.export.transcript import clean

if TYPE_CHECKING:
    from rich.live import Live

PLAIN_EVERY_S = 2.0


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """A block in which SIGTERM raises SystemExit(143). It does nothing in threads, which cannot
    handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


class ProgressDisplay:
    """Plain lines. As a context manager, it shows the last state at the end."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._line = self._shown = ""
        self._next = 0.0
        self._warnings = _Warnings(self)
        self._while_open = contextlib.ExitStack()

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        print(clean(text), file=self.stream, flush=True)

    def show(self, done: int, total: int, facts: Mapping[str, str]) -> None:
        """Shows the state. It is printed at most every two seconds, and only when it has
        changed.
        """
        self._line = f"{done}/{total}  " + "  ".join(
            f"{name} {value}" for name, value in facts.items()
        )
        if time.monotonic() >= self._next:
            self._print()

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._line != self._shown:
            self._shown = self._line
            self._next = time.monotonic() + PLAIN_EVERY_S
            self.say(self._line)

    def __enter__(self) -> ProgressDisplay:
        logging.getLogger("rollq").addHandler(self._warnings)
        self._while_open.enter_context(exit_on_sigterm())
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("rollq").removeHandler(self._warnings)
        self.close()
        self._while_open.close()


class _Warnings(logging.Handler):
    """Says what is logged as a warning or worse."""

    def __init__(self, display: ProgressDisplay) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.say(f"rollq: {record.getMessage()}")


class LiveProgressDisplay(ProgressDisplay):
    """A bar and a table, redrawn four times a second. The last state stays on the terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console

        self._console = Console(file=stream, highlight=False)
        self._live: Live | None = None

    def say(self, text: str) -> None:
        self._console.print(clean(text), markup=False, soft_wrap=True)

    def show(self, done: int, total: int, facts: Mapping[str, str]) -> None:
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_row(
            "", ProgressBar(total=max(total, 1), completed=done, width=40), f"{done}/{total}"
        )
        for name, value in facts.items():
            table.add_row(Text(clean(name), style="dim"), Text(clean(value)))
        if not self._live:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._live.update(table)

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None


def open_progress(stream: TextIO) -> ProgressDisplay:
    """The best display that the stream allows."""
    if stream.isatty() and os.environ.get("TERM") not in (None, "dumb"):
        try:
            return LiveProgressDisplay(stream)
        except ImportError:
            pass
    return ProgressDisplay(stream)
