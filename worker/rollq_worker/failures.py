"""Errors that stop an attempt, and the failures that foreign code's exceptions become."""

from asyncio import CancelledError
from types import TracebackType

from rollq.errors import JobFailure, RolloutFailure, RollqError, WorkerFailure

FOREIGN_ERRORS = (Exception, SystemExit, CancelledError)
"""Errors of other people's code, also by `sys.exit()` and of a coroutine that was cancelled."""


class DeadlineExceeded(RolloutFailure):
    """The attempt used up its time. The failure's class is that of the call that it was waiting
    for.
    """


class Drained(RollqError):
    """The worker is stopping, or needs the slot for others, so it gives the job back at no cost."""


class Diverged(RollqError):
    """The environment or the agent did not repeat what the journal of an earlier attempt has. The
    episode begins again without it, at no cost: nothing went wrong but that its worker had to go.
    """


class OtherWeights(RollqError):
    """No engine serves the weights that the job is pinned to, so it goes back at no cost, and comes
    again later.
    """

    def __init__(self, key: str, version: str) -> None:
        super().__init__(f"{key} is pinned to weights {version!r}, and no engine serves them")


def typed(error: BaseException, failure: type[RolloutFailure], what: str) -> RolloutFailure | None:
    """The `failure` that foreign code's exception becomes; None for an error that has a type
    already. `what` names the code.
    """
    if isinstance(error, DeadlineExceeded):
        return failure(f"{error} while waiting for {what}")
    if isinstance(error, RollqError):
        return None
    if failure is JobFailure and _is_shortage(error):
        failure = WorkerFailure
    # Some exceptions have no text, so the type goes first.
    return failure(f"{what}: {type(error).__name__}: {error}")


def _is_shortage(error: BaseException) -> bool:
    """True where this process has no memory or no thread left, which is no fault of a job."""
    is_of_threads = isinstance(error, RuntimeError) and "new thread" in str(error)
    return is_of_threads or isinstance(error, MemoryError)


class errors_become:
    """A block in which a missed deadline and every untyped exception is raised as `failure`. `what`
    names the code inside.

    A turn has several of these blocks, and a class costs a fourth of a generator with
    `contextmanager`.
    """

    __slots__ = ("_failure", "_what")

    def __init__(self, failure: type[RolloutFailure], what: str) -> None:
        self._failure = failure
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (
            isinstance(error, Exception)
            and (became := typed(error, self._failure, self._what)) is not None
        ):
            raise became from error
