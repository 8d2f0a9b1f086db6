"""The attempt that this thread plays: for the labels of what an environment starts outside of the
worker.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttemptLabels:
    """One attempt at one job."""

    run: str = ""
    job: str = ""
    attempt: int = 0


NO_ATTEMPT = AttemptLabels()
_current: ContextVar[AttemptLabels] = ContextVar("rollq_attempt", default=NO_ATTEMPT)


def attempt_labels() -> AttemptLabels:
    """Labels of the attempt for which this thread opens an environment: its `run`, `job` and
    `attempt`. They are empty elsewhere.
    """
    return _current.get()


@contextmanager
def labelled(labels: AttemptLabels) -> Iterator[None]:
    """A block in which `attempt_labels` returns these."""
    token = _current.set(labels)
    try:
        yield
    finally:
        _current.reset(token)
