"""Shows frames: live on a terminal with rich installed, as plain lines elsewhere. The last frame
stays.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from typing import TYPE_CHECKING, TextIO

from rollq.commands.tables import columns
from rollq.commands.top.frame import BAD, WIDE, Frame, Line, Table, fitted, one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

PLAIN_EVERY_S = 10.0
"""Seconds between two frames where none replaces the one before."""
BESIDE = 3
"""Lines that are kept free: the cursor's, and two between the head and the tables."""


class Screen:
    """Plain lines. As a context manager, it leaves the last frame. What is logged meanwhile is not
    printed: the trouble is shown.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next: dict[bool, float] = {}
        """Time before which the kind of the last text, trouble or a frame, is not printed again
        (`time.monotonic`).
        """
        self._unsaid = logging.NullHandler()

    @property
    def wide(self) -> bool:
        """True if there is room for everything."""
        return not self._stream.isatty() or shutil.get_terminal_size().columns >= WIDE

    def show(self, frame: Frame) -> None:
        self._print("\n".join(plain(frame)) + "\n", trouble=False)

    def trouble(self, text: str) -> None:
        """Says that the fleet cannot be read. The last frame stays."""
        self._print(f"rollq: {text}", trouble=True)

    def _print(self, text: str, *, trouble: bool) -> None:
        now = time.monotonic()
        if now >= self._next.get(trouble, now):
            self._next = {trouble: now + PLAIN_EVERY_S}
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass

    def __enter__(self) -> Screen:
        logging.getLogger("rollq").addHandler(self._unsaid)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("rollq").removeHandler(self._unsaid)
        self.close()


def plain(frame: Frame) -> list[str]:
    """The whole frame as lines."""
    lines = ["   ".join(cell.text for cell in line) for line in frame.head]
    lines.append(f"holds it up: {frame.holdup.text}")
    for table in frame.tables:
        rows = [table.columns, *([cell.text for cell in row] for row in table.rows)]
        lines += ["", *(line.rstrip() for line in columns(rows))]
        if table.more:
            lines.append(f"and {table.more} more {table.name}")
    return lines


class LiveScreen(Screen):
    """Redrawn in place, and cut to the size of the terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console

        self._console: Console = Console(file=stream, highlight=False)
        self._live: Live | None = None
        self._shown: Frame | None = None

    @property
    def wide(self) -> bool:
        """See Screen."""
        return self._console.width >= WIDE

    def show(self, frame: Frame) -> None:
        self._shown = frame
        self._draw("")

    def trouble(self, text: str) -> None:
        self._draw(text)

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _draw(self, trouble: str) -> None:
        from rich.live import Live

        if not self._live:
            # Drawn by `update` alone: a thread that draws now and then would only show the same
            # again.
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(_drawn(self._shown, trouble, self._console), refresh=True)


def _drawn(frame: Frame | None, trouble: str, console: Console) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if trouble:
        parts.append(Text(trouble, style=BAD))
    if frame:
        parts += [_line(line) for line in frame.head]
        why = one_line(frame.holdup.text, 4 * console.width)  # four lines
        parts.append(Text.assemble(("holds it up: ", "bold"), (why, frame.holdup.style)))
        texts = [part for part in parts if isinstance(part, Text)]
        used = sum(len(text.wrap(console, console.width)) for text in texts)
        room = console.height - used - BESIDE - len(frame.tables)
        for table, left_out in fitted(frame, room):
            parts += [Text(""), _table(table)]
            if left_out:
                parts.append(Text(f"and {left_out} more {table.name}", style="dim"))
    return Group(*parts)


def _line(line: Line) -> Text:
    from rich.text import Text

    return Text("   ").join(Text(cell.text, style=cell.style) for cell in line)


def _table(table: Table) -> RenderableType:
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim", expand=False
    )
    for index, title in enumerate(table.columns):
        widest = max(len(title), *(len(row[index].text) for row in table.rows))
        # Numbers are whole or not there; a name is cut.
        least = len(title) if index == 0 or index >= len(table.columns) - 1 else widest
        drawn.add_column(title, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in table.rows:
        drawn.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    return drawn


def open_screen(stream: TextIO, live: bool) -> Screen:
    """The best one that the stream allows; a plain one unless `live`."""
    if live and stream.isatty() and os.environ.get("TERM") not in (None, "dumb"):
        try:
            return LiveScreen(stream)
        except ImportError:
            pass
    return Screen(stream)
