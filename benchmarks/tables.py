"""Plain text tables, as in README.md."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: text to the left, all columns after the first to the
    right.
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [head, rule, *rows]
    return "\n".join(
        "| " + " | ".join(_cell(row[i], i, widths[i]) for i in range(len(head))) + " |"
        for row in lines
    )


def _cell(text: str, column: int, width: int) -> str:
    return text.ljust(width) if column == 0 else text.rjust(width)


def ms(seconds: float) -> str:
    """Milliseconds with about three significant digits."""
    value = seconds * 1000
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
