"""Connections to Redis that wait rather than fail: to one server, or to the one that Sentinels call
the primary. Nothing here knows what is stored.
"""

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

from rollq.errors import SettingsError
from rollq.servers.retry import Address, RetryLoop
from rollq.urls import SentinelAddress, check_url, is_sentinel, mask_url, parse_sentinels

T = TypeVar("T")

PATIENCE_S = 30.0
"""Seconds for which a call is made again."""
SOCKET_TIMEOUT_S = 5.0
"""Seconds to wait for a reply: a third of a lease, so that a lost reply does not cost the lease."""
NOT_PRIMARY = re.compile(r"(?:^|[-\s])(?:READONLY|NOREPLICAS|MASTERDOWN|UNBLOCKED) ")
"""Answers of a server that is not the primary any more, or is one without its replicas."""


def connect(
    url: str, *, max_connections: int = 256, patience_s: float = PATIENCE_S
) -> "redis.Redis":
    """A client for any address of `rollq.urls`. Nothing is sent yet.

    `max_connections` must exceed the threads that use it. A call is made again for `patience_s`
    seconds when it cannot reach Redis, unless its caller has a RetryLoop. With 0 it is made once.
    Raises SettingsError.
    """
    check_url(url)
    options: dict[str, Any] = {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 3.0,
        "max_connections": max_connections,
        "retry": Retry(NoBackoff(), 0),
    }
    servers = parse_sentinels(url) if is_sentinel(url) else None
    try:
        client: Any = _behind_sentinels(servers, options) if servers else _at(url, options)
    except (ValueError, TypeError) as e:
        option = re.search(r"'(\w+)'", str(e))
        wrong = "an option is wrong"
        if option:
            wrong = f"the option {option[1]} is unknown or has a wrong value"
        raise SettingsError(f"not an address of Redis: {mask_url(url)} ({wrong})") from None
    if not servers and client.connection_pool.connection_kwargs.get("decode_responses"):
        raise SettingsError(f"rollq stores bytes: remove decode_responses from {mask_url(url)}")
    client.retry_loop = RetryLoop(for_s=patience_s, unwritable=False)
    return client  # type: ignore[no-any-return]


def _at(url: str, options: dict[str, Any]) -> "OneServer":
    """A client for the server at an address. Raises ValueError or TypeError for a wrong option."""
    client: Any = OneServer.from_url(url, **options)
    client.address = Address(mask_url(url))
    pool = client.connection_pool
    # redis-py looks at most options when it connects
    pool.connection_class(**pool.connection_kwargs)
    return client  # type: ignore[no-any-return]


def _behind_sentinels(servers: SentinelAddress, options: dict[str, Any]) -> "SentinelClient":
    """A client for the primary of Sentinels. Raises ValueError for a wrong option."""
    library: Any = redis  # without types where it matters here
    tls = library.connection.parse_url(f"redis:///?{servers.tls_options}") | {"ssl": servers.tls}
    login = {"username": servers.username, "password": servers.password}
    # A Sentinel that is away must not hold up the question to the next one.
    brief = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": options["retry"]}
    sentinels = library.Sentinel(
        servers.hosts, sentinel_kwargs=brief | tls | servers.sentinel_login
    )
    service = servers.options["service"]
    pool = partial(
        library.SentinelConnectionPool,
        service,
        sentinels,
        db=servers.database,
        **options,
        **tls,
        **login,
    )
    client: Any = SentinelClient.from_pool(pool())
    client.address = Address(", ".join(f"{host}:{port}" for host, port in servers.hosts))
    client.open_pool = pool
    client.find_primary = partial(sentinels.discover_master, service)
    return client  # type: ignore[no-any-return]


class OneServer(redis.Redis):
    """A client of one server: the one at an address, or the one that Sentinels call the primary."""

    address: Address
    retry_loop: RetryLoop

    def execute_command(self, *args: Any, **options: Any) -> Any:
        command: Any = super().execute_command
        return self.retrying(lambda: command(*args, **options))

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        start: Any = super().pipeline
        return Pipeline(self, lambda: start(transaction, shard_hint))

    def retrying(self, call: Callable[[], T]) -> T:
        """The call's result, after as many tries as the loop allows."""
        return self.retry_loop(lambda: self.address(lambda: self._once(call)))

    def _once(self, call: Callable[[], T]) -> T:
        """Leaves a server that is not the primary any more, so that the next call looks for it.

        redis-py does so by itself, but not for errors that come out of a script.
        """
        try:
            return call()
        except redis.ResponseError as e:
            if isinstance(e, ReadOnlyError) or NOT_PRIMARY.search(str(e)):
                self.connection_pool.disconnect(inuse_connections=False)
            raise


class SentinelClient(OneServer):
    """A client of the server that Sentinels call the primary.

    Connections ask the Sentinels when they connect. The client also asks every second, because a
    server that was replaced and lives takes writes for seconds more, which are lost.
    """

    open_pool: Callable[[], Any]
    find_primary: Callable[[], tuple[str, int]]
    _primary: tuple[str, int] | None = None
    _look_at = 0.0

    def _once(self, call: Callable[[], T]) -> T:
        self._look()
        return super()._once(call)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + 1.0
        with suppress(redis.RedisError):
            before = self._primary
            self._primary = self.find_primary()
            if before not in (None, self._primary):
                # A pool for each primary: none that is in use comes back into the next one's.
                pool = self.connection_pool
                self.connection_pool = self.open_pool()
                pool.disconnect(inuse_connections=False)


class Pipeline:
    """Collects commands. `execute` sends them, and sends all of them again while Redis cannot be
    reached.
    """

    def __init__(self, client: OneServer, start: Callable[[], Any]) -> None:
        """`start` makes redis-py's own pipeline."""
        self._client = client
        self._start = start
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., "Pipeline"]:
        def collect(*args: Any, **options: Any) -> Pipeline:
            self._calls.append((name, args, options))
            return self

        return collect

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        calls = self._calls
        self._calls = []

        def send() -> list[Any]:
            pipe = self._start()
            for name, args, options in calls:
                getattr(pipe, name)(*args, **options)
            return list(pipe.execute(raise_on_error=raise_on_error))

        return self._client.retrying(send)
