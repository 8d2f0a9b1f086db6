"""Where foreign code is called: every stray exception becomes a typed failure of whoever it was called from."""

from collections.abc import Iterator
from contextlib import contextmanager

from rollq.errors import RolloutFailure, RollqError


class DeadlineExceeded(RolloutFailure):
    """The attempt used up its leased time; blamed on whatever it was waiting for."""


class Drained(RollqError):
    """The worker is stopping: the job is released, at no cost."""


@contextmanager
def boundary(failure: type[RolloutFailure], what: str) -> Iterator[None]:
    """Typed errors pass, a deadline takes the class of the boundary, everything else becomes `failure`."""
    try:
        yield
    except DeadlineExceeded as e:
        raise failure(f"{e} while waiting for {what}") from e
    except RollqError:
        raise
    except Exception as e:
        # Some exceptions print empty, so the type goes first.
        raise failure(f"{what}: {type(e).__name__}: {e}") from e
