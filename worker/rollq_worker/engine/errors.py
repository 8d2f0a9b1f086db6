"""What can become of a request to an engine, told apart by what there is to do about it.

The invariant: a job is blamed only where the engine looked at the request and refused it. It knows nothing of retries.
"""

import re

from rollq.errors import JobFailure
from rollq_worker.engine.http import Answer
from rollq_worker.engine.reply import read_error

CONTEXT_FULL = re.compile(r"context length|maximum allowed length|token count exceeds", re.IGNORECASE)
CONTEXT_TOKENS = re.compile(r"(?:context length|maximum allowed length)\D{0,10}(\d+) tokens", re.IGNORECASE)
NOT_THE_REQUEST = frozenset({401, 403, 404, 405, 407, 429, 503})
"""They say something about the engine or the way there, as redirections do, and not about this request: waited for."""


class Away(Exception):
    """The engine takes no requests now. `gone`: there is nobody."""

    def __init__(self, message: str, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


class Broken(Exception):
    """The engine broke in the middle of a request."""


class Reset(Broken):
    """It hung up without an answer."""


class Cut(Exception):
    """This process ended the wait. `hung`: because the engine answers nobody."""

    def __init__(self, hung: bool) -> None:
        super().__init__("the engine does not answer" if hung else "the wait was ended")
        self.hung = hung


class TooLong(Exception):
    """The engine's context is shorter than was known."""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit
        """In tokens; 0 when the engine did not say."""


def refusal(answer: Answer, key: str) -> Away | Broken | TooLong | JobFailure:
    """What a status other than 200 means for the job `key`."""
    status = answer.status
    message = f"the engine answered {status}: {read_error(answer.body)}"
    if status in NOT_THE_REQUEST or 300 <= status < 400:
        return Away(message)
    if not 400 <= status < 500 or status == 408 or "duplicate request id" in message.lower():
        return Broken(message)
    limit = context_limit(message)
    return JobFailure(f"{key}: {message}") if limit is None else TooLong(message, limit)


def context_limit(message: str) -> int | None:
    """The length limit, in tokens, that a "too long" message names; 0 when it names none, None for other messages."""
    if not CONTEXT_FULL.search(message):
        return None
    found = CONTEXT_TOKENS.search(message)
    return int(found[1]) if found else 0
