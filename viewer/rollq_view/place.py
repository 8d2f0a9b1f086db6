"""The place that rollouts come from: a Redis with runs, or an exported file. The server knows
nothing else of either.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollq_view.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A run's rollouts as they are known now."""

    rows: Mapping[str, Row]
    """Rows by key, in their order."""
    version: int
    """Changes when a row does."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """State of each group: open, ready, held, acked or dropped; empty for a file."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Counts of the run in place of those of its rows, and what else is known of it; empty for a
    file.
    """
    share: float = 1.0
    """Part of the file that is read, from 0.0 to 1.0."""


class Place(Protocol):
    """A source of rollouts. Its methods may be called from several threads. They raise RollqError,
    whose text is for people.
    """

    title: str
    """A file's name, or Redis's address without its password."""
    live: bool
    """True if rollouts may still be played: then there are times, workers and dead letters."""

    def runs(self) -> list[dict[str, Any]]:
        """Name and a few counts of each run, the latest first."""
        ...

    def listing(self, run: str) -> Listing: ...

    def rollout(self, run: str, key: str, attempt: int | None) -> dict[str, Any]:
        """One rollout as `rollq_view.conversation.page` makes it."""
        ...

    def requeue(self, run: str, job_id: str) -> None:
        """Plays a dead job again."""
        ...
