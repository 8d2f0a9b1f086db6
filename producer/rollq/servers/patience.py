"""The one loop that makes a call again while Redis is away, and says so: a wait in silence looks
like a program that hangs.

redis-py's own retries are off, because it nests them (connecting within sending), so that their
times multiply. The loop knows nothing of what is sent: everything that rollq sends may be sent
twice.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import EqualJitterBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ClusterError,
    RedisClusterException,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.sentinel import MasterNotFoundError

from rollq.errors import RollqError
from rollq.servers.refusal import of_sentinels, unreached

log = logging.getLogger("rollq")

T = TypeVar("T")

PATIENCE_S = 30.0
"""Seconds after its first failure for which a call is made again. It ends at most one pause and one
try later.
"""
BACKOFF = EqualJitterBackoff(cap=2.0, base=0.1)
"""Pauses between two tries."""
MOVING_S = 3.0
"""The same as PATIENCE_S while the slot of the keys moves in a cluster. The move may take minutes,
and the caller has other runs to look after.
"""
SILENT_S = 2.0
"""Seconds without Redis that are worth no word."""
SAY_EVERY_S = 30.0
FIRST_S = 5.0
"""Seconds after which a call gives up whose server this process has never reached. Most often the
address is wrong.
"""

_reached: set[str] = set()
"""Addresses that have answered."""
_said: dict[str, float] = {}
"""When each address was last said to be away. Hundreds of threads wait for the same one."""


class NoRedis(RollqError, redis.ConnectionError):
    """No server has ever answered at this address."""


class Patience:
    """Makes calls to the server or cluster of that name, each again while that cannot be reached,
    for `for_s` seconds.
    """

    def __init__(self, name: str, for_s: float) -> None:
        self._name = name
        self._for_s = for_s

    def shorten(self, for_s: float) -> None:
        """Calls give up after that many seconds at most, also those that are waiting now."""
        self._for_s = min(self._for_s, for_s)

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's result. Raises redis.ConnectionError or redis.TimeoutError; NoRedis for a
        server that has never answered; AuthenticationError, at once but for Sentinels;
        TryAgainError while a slot moves, or ClusterDownError.
        """
        failures, since = 0, 0.0
        while True:
            try:
                result = call()
            except (redis.RedisError, RedisClusterException) as e:
                if isinstance(e.__cause__, AuthenticationError):  # of a cluster's servers
                    raise e.__cause__ from None
                if (error := passing(e)) is None:
                    raise
                if isinstance(e, redis.BusyLoadingError):  # it is there, and reads its file
                    _reached.add(self._name)
                failures, since = failures + 1, since or time.monotonic()
                away_s = time.monotonic() - since
                self._say(away_s, e)  # first: a single try may take longer than all the patience
                if away_s >= (
                    min(MOVING_S, self._for_s) if isinstance(error, TryAgainError) else self._for_s
                ):
                    if error is e:
                        raise
                    raise error from (
                        None if isinstance(e, MasterNotFoundError) else e
                    )  # its text may show passwords
                time.sleep(BACKOFF.compute(failures))
            else:
                _reached.add(self._name)
                return result

    def _say(self, away_s: float, error: redis.RedisError | RedisClusterException) -> None:
        """Log a wait that lasts, once in SAY_EVERY_S for all threads of the process."""
        if self._name not in _reached and away_s >= FIRST_S:
            cause = (
                None if isinstance(error, MasterNotFoundError) else error
            )  # its text may show passwords
            raise NoRedis(unreached(self._name, error)) from cause
        now = time.monotonic()
        if away_s >= SILENT_S and now - _said.get(self._name, float("-inf")) >= SAY_EVERY_S:
            _said[self._name] = now
            why = passing(error)  # a Sentinel's raw error shows passwords
            text = (
                "Redis at %s does not answer (%s); trying again. What it had on "
                "its disk is not lost"
            )
            if isinstance(why, TryAgainError):
                text = "Redis at %s takes no calls for these keys now (%s); trying again"
            log.warning(text, self._name, str(why).rstrip("."))


def passing(error: redis.RedisError | RedisClusterException) -> redis.RedisError | None:
    """The error to raise if it lasts; None for an error that stays as it is."""
    match error:
        case AuthenticationError():
            return None
        case MasterNotFoundError():
            return of_sentinels(error)
        case redis.ConnectionError() | redis.TimeoutError() | ClusterDownError() | TryAgainError():
            return error
        # and MovedError: in a transaction, redis-py does not follow them to the end
        case AskError():
            return TryAgainError(f"the slot moves: {error}")
        case ClusterError():  # redis-py followed too many redirections
            return TryAgainError("the slot moves")
        case SlotNotCoveredError():
            return redis.ConnectionError(str(error))
        case RedisClusterException() if isinstance(error.__cause__, OSError | redis.RedisError):
            return redis.ConnectionError(str(error))  # no server that redis-py knows of answers
    return None


class Pipeline:
    """Collects commands. `execute` sends them, and sends all of them again while Redis cannot be
    reached.
    """

    def __init__(
        self, patience: Callable[[Callable[[], Any]], Any], start: Callable[[], Any]
    ) -> None:
        """`start` makes redis-py's own pipeline."""
        self._patience, self._start = patience, start
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., "Pipeline"]:
        def collect(*args: Any, **options: Any) -> Pipeline:
            self._calls.append((name, args, options))
            return self

        return collect

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        calls, self._calls = self._calls, []

        def send() -> list[Any]:
            pipe = self._start()
            for name, args, options in calls:
                getattr(pipe, name)(*args, **options)
            return list(pipe.execute(raise_on_error=raise_on_error))

        sent: list[Any] = self._patience(send)
        return sent
