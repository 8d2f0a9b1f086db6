"""Connections to Redis that wait rather than fail, and the one loop that calls Redis again until it
takes the call.

Redis refuses writes when it is out of memory, when its disk is full or when it has just become a
replica. A refused write changed nothing, so it is safe to send again. This module does not know
what is stored.
"""

import logging
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

from rollq.errors import SettingsError, Unwritable
from rollq.servers.cluster import ClusterClient
from rollq.servers.patience import PATIENCE_S, NoRedis, Patience, Pipeline
from rollq.urls import CLUSTER, EXPECTED, Servers, check_url, mask_url, parse_servers

log = logging.getLogger("rollq")

T = TypeVar("T")

SOCKET_TIMEOUT_S = 5.0
"""Seconds to wait for a reply: a third of a lease, so that a lost reply does not cost the lease."""
CONNECTION_ERRORS = (redis.ConnectionError, redis.TimeoutError)
"""Exceptions that a call raises when it gives up."""
HOPELESS = (NoRedis, redis.AuthenticationError)
"""Those of them that no wait ends: the address or the login is wrong."""
NOT_PRIMARY = re.compile(r"(?:^|[-\s])(?:READONLY|NOREPLICAS|MASTERDOWN|UNBLOCKED) ")
"""What a server answers that is no primary any more, or is one without its replicas."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
RECONNECT_PAUSE_S = 1.0
"""Seconds between two calls that found no Redis. Each such call has itself waited for its patience.
"""
WARN_EVERY_S = 30.0


def connect(
    url: str, *, max_connections: int = 256, patience_s: float = PATIENCE_S
) -> "redis.Redis":
    """A client for any address of `rollq.urls`. Nothing is sent yet, except to a cluster.

    `max_connections` must exceed the threads that use it. A call is made again for `patience_s`
    seconds after it could not reach Redis; 0: it is made once. Raises SettingsError, or
    redis.ConnectionError when no server of a cluster answers.
    """
    check_url(url)
    options: dict[str, Any] = {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 3.0,
        "max_connections": max_connections,
    }
    several = url.partition("://")[0] in EXPECTED
    servers = parse_servers(url) if several else None
    try:
        client: Any = (
            _servers_client(servers, options, patience_s)
            if servers
            else _server_client(url, options, patience_s)
        )
    except (ValueError, TypeError) as e:
        option = re.search(r"'(\w+)'", str(e))
        wrong = (
            f"the option {option[1]} is unknown or has a wrong value"
            if option
            else "an option is wrong"
        )
        why = "no Redis Cluster, or the user lacks +cluster|slots" if several else wrong
        raise SettingsError(f"not an address of Redis: {mask_url(url)} ({why})") from None
    if not servers and client.connection_pool.connection_kwargs.get("decode_responses"):
        raise SettingsError(f"rollq stores bytes: remove decode_responses from {mask_url(url)}")
    return client  # type: ignore[no-any-return]


def _server_client(url: str, options: dict[str, Any], patience_s: float) -> "OneServer":
    """A client for the server at an address. Raises ValueError or TypeError for an option that has
    no such value.
    """
    client: Any = OneServer.from_url(url, retry=Retry(NoBackoff(), 0), **options)
    client.patience = Patience(mask_url(url), patience_s)
    pool = client.connection_pool
    pool.connection_class(
        **pool.connection_kwargs
    )  # redis-py looks at most options when it connects
    return client  # type: ignore[no-any-return]


def _servers_client(servers: Servers, options: dict[str, Any], patience_s: float) -> "redis.Redis":
    """A client for Sentinels, or for a cluster. Raises ValueError for an option that has no such
    value.
    """
    library: Any = redis  # without types where it matters here
    tls = library.connection.parse_url(f"redis:///?{servers.tls_options}") | {"ssl": servers.tls}
    options = options | tls | {"username": servers.username, "password": servers.password}
    patience = Patience(", ".join(f"{host}:{port}" for host, port in servers.hosts), patience_s)
    if servers.scheme == CLUSTER:
        return ClusterClient(servers.hosts, patience, **options)  # type: ignore[return-value]
    # A Sentinel that is away must not hold up the question to the next one.
    once = Retry(NoBackoff(), 0)
    brief = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": once}
    sentinels = library.Sentinel(
        servers.hosts, sentinel_kwargs=brief | tls | servers.sentinel_login
    )
    service = servers.options["service"]
    pool = partial(
        library.SentinelConnectionPool,
        service,
        sentinels,
        db=servers.database,
        retry=once,
        **options,
    )
    client: Any = SentinelClient.from_pool(pool())
    client.patience, client.open_pool = patience, pool
    client.find_primary = partial(sentinels.discover_master, service)
    return client  # type: ignore[no-any-return]


class OneServer(redis.Redis):
    """A client of one server: the one at an address, or the one that Sentinels call the primary."""

    patience: Patience

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Leaves a server that is no primary any more, so that the next call looks for the primary.

        redis-py does so by itself, but not for errors that come out of a script.
        """
        command: Any = super().execute_command
        try:
            return self.patiently(lambda: command(*args, **options))
        except redis.ResponseError as e:
            leave_demoted(self, e)
            raise

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        start: Any = super().pipeline
        return Pipeline(self.patiently, lambda: start(transaction, shard_hint))

    def patiently(self, call: Callable[[], T]) -> T:
        """The call's result, as `Patience` gives it."""
        return self.patience(call)


class SentinelClient(OneServer):
    """A client of the server that Sentinels call the primary.

    Connections ask the Sentinels when they connect. The client also asks every second, because a
    server that was replaced and lives takes writes for seconds more, which are lost.
    """

    open_pool: Callable[[], Any]
    find_primary: Callable[[], tuple[str, int]]
    _primary: tuple[str, int] | None = None
    _look_at = 0.0

    def patiently(self, call: Callable[[], T]) -> T:
        def look_and_call() -> T:
            self._look()
            return call()

        return self.patience(look_and_call)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + 1.0
        with suppress(redis.RedisError):
            before, self._primary = self._primary, self.find_primary()
            if before not in (None, self._primary):
                # A pool for each primary: none that is in use comes back into the next one's.
                pool, self.connection_pool = self.connection_pool, self.open_pool()
                pool.disconnect(inuse_connections=False)


def leave_demoted(client: Any, error: redis.ResponseError) -> None:
    """Drop the idle connections of a client of one server, if the error says that it is no primary
    now.
    """
    if isinstance(error, ReadOnlyError) or NOT_PRIMARY.search(str(error)):
        client.connection_pool.disconnect(inuse_connections=False)


class RetryLoop:
    """Calls Redis again until it takes the call. All calls of one loop together log one warning in
    WARN_EVERY_S.

    `wait(seconds)` is called between two tries and may raise to stop earlier. With `relogin`, the
    loop also waits for a Redis that refuses the login.
    """

    def __init__(
        self, *, wait: Callable[[float], object] = time.sleep, relogin: bool = False
    ) -> None:
        self._wait = wait
        self._relogin = relogin
        self._warned = float("-inf")

    def __call__(self, call: Callable[[], T], for_s: float = float("inf")) -> T:
        """Raises Unwritable or CONNECTION_ERRORS after `for_s` seconds; NoRedis and
        AuthenticationError at once.
        """
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
                hopeless = isinstance(e, NoRedis if self._relogin else HOPELESS)
                if hopeless or time.monotonic() >= deadline:
                    raise
                log.info("Redis is away (%s); trying again", type(e).__name__)
                seconds = RECONNECT_PAUSE_S
            # The jitter keeps threads that wait together from coming back together.
            self._wait(
                min(seconds * random.uniform(0.75, 1.25), max(0.0, deadline - time.monotonic()))
            )

    def _warn(self, error: Unwritable) -> None:
        if time.monotonic() - self._warned >= WARN_EVERY_S:
            log.warning(
                "%s. Nothing is lost; trying again until it takes writes", str(error).rstrip(".")
            )
            self._warned = time.monotonic()


def retry(call: Callable[[], T], for_s: float = float("inf")) -> T:
    """A RetryLoop for a single call."""
    return RetryLoop()(call, for_s)
