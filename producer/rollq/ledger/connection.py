"""Connections to Redis that wait rather than fail, and the one loop that calls Redis again until it takes the call.

A call is sent again after every lost connection, so hundreds of threads outlast 20 s without Redis. That is safe,
because all of the ledger's scripts may be repeated. Redis refuses writes when it is out of memory, when its disk is
full or when it has just become a replica. A refused write changed nothing, so it is safe to send again, too. This
module does not know what is stored.
"""

import logging
import random
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import EqualJitterBackoff
from redis.retry import Retry

from rollq.errors import LedgerError, SettingsError, Unwritable
from rollq.urls import check_url, mask_url

log = logging.getLogger("rollq")

T = TypeVar("T")

RETRIES = 30
"""Number of retries of a call. With waits of up to 2 s each, a call gives up after 26 to 50 s."""
SOCKET_TIMEOUT_S = 5.0
"""Seconds to wait for a reply: a third of a lease, so that a lost reply does not cost the lease."""
CONNECTION_ERRORS = (redis.ConnectionError, redis.TimeoutError)
"""Exceptions that a call raises when it gives up."""
REFUSING = re.compile(
    r"not allowed when used memory|(?:^|[-\s])(?:MISCONF|READONLY|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY) "
)
"""What Redis answers, itself or through a script, when it takes no writes."""
KEY_REMEDY = (
    "Restore the key from a backup, or delete its run with `rollq drop --run RUN --whole-run --yes`; docs/ledger.md"
    " says which keys may be deleted alone."
)
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
RECONNECT_PAUSE_S = 1.0
"""Seconds between two calls that found no Redis. Each such call has itself waited for half a minute."""
WARN_EVERY_S = 30.0


def connect(url: str, *, max_connections: int = 256) -> "redis.Redis":
    """A client for `redis://`, `rediss://` or `unix://`; nothing is sent yet. Raises SettingsError.

    `max_connections` must exceed the threads that use it.
    """
    check_url(url)
    try:
        client: Any = redis.Redis.from_url(
            url,
            retry=Retry(EqualJitterBackoff(cap=2.0, base=0.1), RETRIES),
            retry_on_error=list(CONNECTION_ERRORS),
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=3.0,
            health_check_interval=15,
            max_connections=max_connections,
        )
    except (ValueError, TypeError) as e:
        raise SettingsError(f"not an address of Redis: {mask_url(url)} (wrong options: {type(e).__name__})") from e
    if client.connection_pool.connection_kwargs.get("decode_responses"):
        raise SettingsError(f"rollq stores bytes: remove decode_responses from {mask_url(url)}")
    return client  # type: ignore[no-any-return]


def check_redis(connection: "redis.Redis") -> list[str]:
    """Warnings about how Redis is configured: one that evicts keys or forgets them on restart loses trajectories."""
    warnings = []
    server: Any = connection
    try:
        policy, durable = server.info("memory")["maxmemory_policy"], server.info("persistence")["aof_enabled"]
    except (redis.ResponseError, KeyError) as e:
        return [f"Redis does not show how it is configured ({e}): it must run with noeviction and appendonly"]
    if policy != "noeviction":
        warnings.append(f"Redis evicts keys when memory is short (maxmemory-policy {policy}): set it to noeviction")
    if not durable:
        warnings.append("Redis forgets everything when it restarts: start it with --appendonly yes")
    return warnings


class RetryLoop:
    """Calls Redis again until it takes the call. All calls of one loop together log one warning in WARN_EVERY_S.

    `wait(seconds)` is called between two tries and may raise to stop earlier. With `reconnect`, the loop also waits for
    a Redis that cannot be reached.
    """

    def __init__(self, *, wait: Callable[[float], object] = time.sleep, reconnect: bool = False) -> None:
        self._wait = wait
        self._reconnect = reconnect
        self._warned = float("-inf")

    def __call__(self, call: Callable[[], T], for_s: float = float("inf")) -> T:
        """Raises Unwritable after `for_s` seconds of refusals and, without `reconnect`, CONNECTION_ERRORS."""
        pause, deadline = FIRST_PAUSE_S, time.monotonic() + for_s
        while True:
            try:
                return call()
            except Unwritable as e:
                if time.monotonic() >= deadline:
                    raise
                self._warn(e)
                seconds, pause = pause, min(LONGEST_PAUSE_S, pause * 1.6)
            except CONNECTION_ERRORS as e:
                if not self._reconnect or time.monotonic() >= deadline:
                    raise
                log.info("Redis is away (%s); trying again", type(e).__name__)
                seconds = RECONNECT_PAUSE_S
            # The jitter keeps threads that wait together from coming back together.
            self._wait(min(seconds * random.uniform(0.75, 1.25), max(0.0, deadline - time.monotonic())))

    def _warn(self, error: Unwritable) -> None:
        if time.monotonic() - self._warned >= WARN_EVERY_S:
            log.warning("%s. Nothing is lost; trying again until it takes writes", str(error).rstrip("."))
            self._warned = time.monotonic()


def retry(call: Callable[[], T], for_s: float = float("inf")) -> T:
    """A RetryLoop for a single call."""
    return RetryLoop()(call, for_s)


def refuses_writes(error: Exception) -> bool:
    """Whether Redis takes no writes at all for now. An error of a single write does not count."""
    if isinstance(error, redis.OutOfMemoryError | redis.ReadOnlyError):  # redis-py dropped their codes from the text
        return True
    return "DAMAGED" not in str(error) and bool(REFUSING.search(str(error)))


def translated(error: redis.ResponseError, what: str) -> LedgerError:
    """The ledger's error for a reply of Redis. It says what was tried, and names the damaged key if there is one."""
    kind = Unwritable if refuses_writes(error) else LedgerError
    return kind(f"{what}: {_explain(str(error))}")


def _explain(error: str) -> str:
    """A script's own complaint, or why Redis takes no writes, without Redis's wrapping."""
    if "not allowed when used memory" in error:
        return "Redis is out of memory (used memory > 'maxmemory')"
    if "DAMAGED" not in error and (why := REFUSING.search(error)):
        return error[why.start() :].lstrip(" -")
    if found := re.search(r"DAMAGED (\S+) (.*?)(?: script:|$)", error):
        return f"{found[1]} {found[2]}. {KEY_REMEDY}"
    return f"{error}. {KEY_REMEDY}" if "WRONGTYPE" in error else error
