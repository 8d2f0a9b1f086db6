"""Keeps tokens of too old weights out of an attempt.

Admission lets a group in at the published step or before (docs/ledger.md). So tokens of the step that was published
when its job was claimed, and of later steps, keep the run's bound on staleness.
"""

from dataclasses import replace

from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.protocols import Engine, Generated, SampleRequest


class FreshEngine:
    """`protocols.Engine` for one attempt: only weights of the `oldest` step or a later one sample for it."""

    def __init__(self, engine: Engine, attempt: Attempt, oldest: int) -> None:
        self._engine = engine
        self._attempt = attempt
        self._oldest = oldest
        self._fresh: set[str] = set()
        """Versions that are known to be new enough."""

    def room(self, prompt: int) -> int:
        """See `protocols.Engine`."""
        return self._engine.room(prompt)

    def generate(self, request: SampleRequest) -> Generated:
        """See `protocols.Engine`."""
        return self._engine.generate(replace(request, accepts=self._accepts))

    def _accepts(self, version: str) -> bool:
        if version not in self._fresh and self._attempt.are_fresh(version, self._oldest):
            self._fresh.add(version)
        return version in self._fresh
