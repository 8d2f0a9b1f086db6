"""Runs a check under a time limit. What a check raises becomes its finding, so no check can end
another.
"""

import threading
import time
from collections.abc import Callable, Sequence

from rollq.errors import RollqError
from rollq.servers.health import Finding, Level
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.urls import mask_url
from rollq_worker.remote.http_client import NoResponse

Check = Callable[[], Sequence[Finding]]


class Limited:
    """A check that runs in a thread of its own from now on."""

    def __init__(self, name: str, check: Check, limit_s: float, remedy: str) -> None:
        """`name` is that of the finding if the check itself finds nothing, and `remedy` what to do
        then.
        """
        self._name, self._check, self._limit_s, self._remedy = name, check, limit_s, remedy
        self._until = time.monotonic() + limit_s
        self._found: Sequence[Finding] = ()
        self._error: BaseException | None = None
        # A daemon, because one that hangs must not keep the command from ending.
        self._thread = threading.Thread(target=self._run, name=f"rollq-doctor-{name}", daemon=True)
        self._thread.start()

    def findings(self) -> Sequence[Finding]:
        """What it found. Waits for it, but not longer than the limit. Raises
        ModuleNotFoundError.
        """
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._thread.is_alive():
            return [self._failed(f"not checked: the check did not end within {self._limit_s:g} s")]
        if isinstance(self._error, ModuleNotFoundError):
            raise self._error
        if isinstance(self._error, (RollqError, NoResponse, *CONNECTION_ERRORS)):
            return [self._failed(mask_url(str(self._error)))]
        if self._error is not None:
            return [self._failed(f"{type(self._error).__name__}: {mask_url(str(self._error))}")]
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._check()
        except (Exception, SystemExit) as e:  # of Redis, Celery, and other people's environments
            self._error = e

    def _failed(self, says: str) -> Finding:
        return Finding(self._name, Level.FAIL, says, self._remedy)
