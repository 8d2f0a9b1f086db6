"""A connection to Redis that waits rather than fails.

It sends a call again after every lost connection, which is safe because all of the ledger's scripts may be repeated. So
hundreds of threads outlast 20 s without Redis. It knows nothing of what is stored.
"""

from typing import Any

import redis
from redis.backoff import EqualJitterBackoff
from redis.retry import Retry

from rollq.errors import SettingsError
from rollq.urls import check_url, mask_url

RETRIES = 30
"""With waits of up to 2 s each, a call gives up after 26 to 50 s."""
SOCKET_TIMEOUT_S = 5.0
"""A third of a lease, so that a lost reply does not cost the lease."""
CONNECTION_ERRORS = (redis.ConnectionError, redis.TimeoutError)
"""What a call raises when it gives up."""


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
