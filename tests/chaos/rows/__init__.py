"""The fault matrix: a row is one kind of fault, injected into a run of its own.

A row is a function of the scene that starts what it needs, breaks it, and says which faults it injected and how long
the run took to recover. The scene settles the rest and the account is the same for all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.scene import Scene

Break = Callable[[Scene], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the matrix."""

    name: str
    inject: Break
    deadline_s: float
    """From the first process to the last; a run that is not whole by then counts as lost."""
    scene: type[Scene] = Scene


ROWS: dict[str, Row] = {}


def row(name: str, *, deadline_s: float = 240.0) -> Callable[[Break], Break]:
    """Enters a function as a row of that name."""

    def enter(inject: Break) -> Break:
        ROWS[name] = Row(name=name, inject=inject, deadline_s=deadline_s)
        return inject

    return enter


def load() -> dict[str, Row]:
    """All rows, in the order of the matrix."""
    from tests.chaos.rows import workers, stores, engines, worlds, clients, junk  # noqa: F401, I001

    return ROWS
