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
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

from rollq.errors import SettingsError, Unwritable
from rollq.servers import held_connections
from rollq.servers.cluster import ClusterClient
from rollq.servers.held_connections import HeldConnections
from rollq.servers.patience import patience
from rollq.urls import CLUSTER, EXPECTED, Servers, check_url, mask_url, parse_servers

log = logging.getLogger("rollq")

T = TypeVar("T")

RETRIES = 30
"""Number of retries of a call. With waits of up to 2 s each, a call gives up after 26 to 50 s."""
SOCKET_TIMEOUT_S = 5.0
"""Seconds to wait for a reply: a third of a lease, so that a lost reply does not cost the lease."""
CONNECTION_ERRORS = (redis.ConnectionError, redis.TimeoutError)
"""Exceptions that a call raises when it gives up."""
SCRIPT = "EVALSHA"
"""The command of which all calls may be sent twice."""
CONNECT_TIMEOUT_S = 3.0
NOT_PRIMARY = re.compile(r"(?:^|[-\s])(?:READONLY|NOREPLICAS|MASTERDOWN|UNBLOCKED) ")
"""What a server answers that is no primary any more, or is one without its replicas."""
LOOK_EVERY_S = 1.0
"""Seconds between two questions to Sentinels who the primary is."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
RECONNECT_PAUSE_S = 1.0
"""Seconds between two calls that found no Redis. Each such call has itself waited for half a minute."""
WARN_EVERY_S = 30.0


def connect(url: str, *, max_connections: int = 256, retries: int = RETRIES) -> "redis.Redis":
    """A client for any address of `rollq.urls`. Nothing is sent yet, except to a cluster.

    `max_connections` must exceed the threads that use it. Raises SettingsError, or redis.ConnectionError when no server
    of a cluster answers.
    """
    check_url(url)
    options: dict[str, Any] = {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        # A PING, which a Redis with a full disk refuses. One that looks once asks what it wants to know.
        "health_check_interval": 15 if retries else 0,
        "max_connections": max_connections + held_connections.MOST,
    }
    patient = {"retry": patience(retries, mask_url(url)), "retry_on_error": list(CONNECTION_ERRORS)}
    several = url.partition("://")[0] in EXPECTED
    servers = parse_servers(url) if several else None
    try:
        client: Any = (
            _servers_client(servers, options, retries) if servers else OneServer.from_url(url, **patient, **options)
        )
        if not several:  # redis-py looks at most options when it connects
            client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (ValueError, TypeError) as e:
        option = re.search(r"'(\w+)'", str(e))
        wrong = f"the option {option[1]} is unknown or has a wrong value" if option else "an option is wrong"
        why = "no Redis Cluster, or the user lacks +cluster|slots" if several else wrong
        raise SettingsError(f"not an address of Redis: {mask_url(url)} ({why})") from None
    if not servers and client.connection_pool.connection_kwargs.get("decode_responses"):
        raise SettingsError(f"rollq stores bytes: remove decode_responses from {mask_url(url)}")
    return client  # type: ignore[no-any-return]


def _servers_client(servers: Servers, options: dict[str, Any], retries: int) -> "redis.Redis":
    """A client for Sentinels, or for a cluster. Raises ValueError for an option that has no such value."""
    library: Any = redis  # without types where it matters here
    tls = library.connection.parse_url(f"redis:///?{servers.tls_options}") | {"ssl": servers.tls}
    options = options | tls | {"username": servers.username, "password": servers.password}
    client: Any
    if servers.scheme == CLUSTER:
        client = ClusterClient(servers.hosts, retries=retries, **options)
    else:
        # A Sentinel that is away must not hold up the question to the next one.
        brief = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": Retry(NoBackoff(), 0)}
        sentinels = library.sentinel.Sentinel(servers.hosts, sentinel_kwargs=brief | tls | servers.sentinel_login)
        retry = patience(retries, ", ".join(f"{host}:{port}" for host, port in servers.hosts))
        options |= {"db": servers.database, "retry": retry, "retry_on_error": list(CONNECTION_ERRORS)}
        options["connection_class"] = _sentinel_connection(library.sentinel, servers.tls)
        client = sentinels.master_for(servers.options["service"], redis_class=SentinelClient, **options)
    return client  # type: ignore[no-any-return]


def _sentinel_connection(library: Any, tls: bool) -> Any:
    """A class of connections that ask the Sentinels whenever they connect.

    redis-py's own connects again within a call, such as a wait of a consumer, to the address that it has, and does not
    give that up for 40 s.
    """

    class SentinelConnection(library.SentinelManagedSSLConnection if tls else library.SentinelManagedConnection):  # type: ignore[misc]
        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            self._connect_retry()
            super().send_packed_command(command, check_health)

    return SentinelConnection


class OneServer(redis.Redis):
    """A client of one server: the one at an address, or the one that Sentinels call the primary."""

    holds_connections = True

    def __init__(self, **options: Any) -> None:
        start: Any = super().__init__
        start(**options)
        self.held = HeldConnections(self.connection_pool)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Leaves a server that is no primary any more, so that the next call looks for the primary.

        redis-py does so by itself, but not for errors that come out of a script.
        """
        try:
            return self._script(args) if args[0] == SCRIPT else self._command(*args, **options)
        except redis.ResponseError as e:
            leave_demoted(self, e)
            raise

    def _command(self, *args: Any, **options: Any) -> Any:
        command: Any = super().execute_command
        return command(*args, **options)

    def _script(self, command: Sequence[Any]) -> Any:
        """The reply to a script. All scripts may be sent twice, so a held connection may turn out not to work."""
        connection = self.held.take() if self.holds_connections else None
        if connection is not None:
            with suppress(*CONNECTION_ERRORS, OSError):
                return self.held.call(connection, command)
        reply = self._command(*command)
        if self.holds_connections:
            with suppress(redis.RedisError, OSError):
                self.held.fill()
        return reply


class SentinelClient(OneServer):
    """A client of the server that Sentinels call the primary.

    It asks them every LOOK_EVERY_S, because a server that was replaced and lives takes writes for seconds more, which
    are lost.
    """

    holds_connections = False
    _look_at = 0.0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            pool: Any = self.connection_pool
            with suppress(redis.RedisError):
                pool.get_master_address()  # drops the connections to another server
        return super().execute_command(*args, **options)


def leave_demoted(client: Any, error: redis.ResponseError) -> None:
    """Drop the idle connections of a client of one server, if the error says that it is no primary now."""
    if isinstance(error, ReadOnlyError) or NOT_PRIMARY.search(str(error)):
        client.connection_pool.disconnect(inuse_connections=False)
        if isinstance(client, OneServer):
            client.held.leave()


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
