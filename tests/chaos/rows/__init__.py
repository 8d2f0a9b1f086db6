"""The fault matrix: a row is one kind of fault, injected into a run of its own.

A row is a function of the run. It starts what it needs, injects the fault, checks that the fault
took effect, and records how long recovery took. What is checked at the end is the same for all rows
(tests/chaos/result.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.fault_run import FaultRun

Inject = Callable[[FaultRun], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the matrix."""

    name: str
    inject: Inject
    deadline_s: float
    """Seconds for the whole run; jobs that have not ended by then count as lost."""


ROWS: dict[str, Row] = {}


def row(name: str, *, deadline_s: float = 240.0) -> Callable[[Inject], Inject]:
    """Register a function as the row of that name."""

    def enter(inject: Inject) -> Inject:
        ROWS[name] = Row(name=name, inject=inject, deadline_s=deadline_s)
        return inject

    return enter


def load() -> dict[str, Row]:
    """All rows, in the order of the matrix."""
    from tests.chaos.rows import workers, redis_server, engines, environments, clients, damaged_data  # noqa: F401, I001

    return ROWS
