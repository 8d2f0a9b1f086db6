"""Why an attempt stops, and a context manager that makes foreign code's exceptions typed failures."""

from collections.abc import Iterator
from contextlib import contextmanager

from rollq.errors import RolloutFailure, RollqError


class DeadlineExceeded(RolloutFailure):
    """The attempt used up its time. The failure's class is that of what it was waiting for."""


class Drained(RollqError):
    """The worker is stopping, so it gives the job back at no cost."""


@contextmanager
def errors_become(failure: type[RolloutFailure], what: str) -> Iterator[None]:
    """In this block, raise a missed deadline and every untyped exception as `failure`. `what` names the code inside."""
    try:
        yield
    except DeadlineExceeded as e:
        raise failure(f"{e} while waiting for {what}") from e
    except RollqError:
        raise
    except Exception as e:
        # Some exceptions have no text, so the type goes first.
        raise failure(f"{what}: {type(e).__name__}: {e}") from e
