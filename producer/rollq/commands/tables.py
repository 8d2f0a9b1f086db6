"""Text for tables on a terminal."""

from collections.abc import Sequence

from rollq.export.transcript import clean

LONGEST_LINE = 100
"""Number of characters of a reason that a table shows."""


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text. Its last column may be of any width."""
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def first_line(reason: str) -> str:
    """The first line of a failure's reason; the rest is a traceback."""
    line = clean(next(iter(reason.strip().splitlines()), "-"))
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 3] + "..."


def age(seconds: float) -> str:
    """A time in its largest unit, such as `3.4m`."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
