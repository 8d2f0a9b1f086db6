"""Keeps tokens of too old weights out of an attempt.

Admission lets a group in at the published step or before (docs/ledger.md). So tokens of the step that was published
when its job was claimed, and of later steps, keep the run's bound on staleness.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from typing import Any

from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.time_spent import WatchedEngine
from rollq_worker.protocols import Generated


class FreshEngine:
    """`protocols.Engine` for one attempt: only weights of the `oldest` step or a later one sample for it."""

    def __init__(self, engine: WatchedEngine, attempt: Attempt, oldest: int) -> None:
        self._engine = engine
        self._attempt = attempt
        self._oldest = oldest
        self._fresh: set[str] = set()
        """Versions that are known to be new enough."""

    def room(self, prompt: int) -> int:
        """See `protocols.Engine`."""
        return self._engine.room(prompt)

    def generate(self, ids: array[int], **options: Any) -> Generated:
        """See `protocols.Engine`."""
        return self._engine.generate(ids, accepts=self._accepts, **options)

    def _accepts(self, version: str) -> bool:
        if version not in self._fresh and self._attempt.are_fresh(version, self._oldest):
            self._fresh.add(version)
        return version in self._fresh
