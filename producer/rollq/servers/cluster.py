"""redis-py's client of a Redis Cluster, made as patient as its client of one server.

redis-py follows a slot that moves (MOVED, ASK), but it neither pauses between tries nor counts a cluster that cannot be
reached as a lost connection. This module knows nothing of what is stored.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ClusterError,
    RedisClusterException,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.retry import Retry

T = TypeVar("T")

MOVING_TRIES = 8
"""Number of tries while the slot of the keys moves, in about 3 s. Then TryAgainError is raised: the move may take
minutes, and the caller has other runs to look after."""
BACKOFF = EqualJitterBackoff(cap=2.0, base=0.1)
MOVING_BACKOFF = EqualJitterBackoff(cap=0.5, base=0.1)


class ClusterClient(RedisCluster):
    """A client of a cluster. Safe to use from many threads. Every command of several keys needs them in one slot."""

    def __init__(self, hosts: Sequence[tuple[str, int]], *, retries: int, **options: Any) -> None:
        """Asks a server for the slots.

        Raises redis.ConnectionError when none answers, ValueError when they are no cluster.
        """
        self.retries = retries
        start: Any = super().__init__
        node: Any = ClusterNode

        def connect() -> None:
            start(
                startup_nodes=[node(host, port) for host, port in hosts],
                retry=Retry(NoBackoff(), 1),
                require_full_coverage=False,  # a server that is away stops its own runs only
                **options,
            )

        try:
            self.patiently(connect)
        except RedisClusterException as e:
            raise ValueError(str(e)) from e

    def patiently(self, call: Callable[[], T]) -> T:
        """The call's result. Calls again while servers are away, for about as long as a client of one server does.

        Raises redis.ConnectionError, TryAgainError while a slot moves, or ClusterDownError.
        """
        failures = 0
        while True:
            try:
                return call()
            except (redis.RedisError, RedisClusterException) as e:
                error = _passing(e)
                if error is None:
                    raise
                failures += 1
                moving = isinstance(error, TryAgainError)
                if failures > min(self.retries, MOVING_TRIES if moving else self.retries):
                    raise error from e
                time.sleep((MOVING_BACKOFF if moving else BACKOFF).compute(failures))

    def execute_command(self, *args: Any, **options: Any) -> Any:
        command: Any = super().execute_command
        return self.patiently(lambda: command(*args, **dict(options)))

    def pipeline(self, transaction: bool | None = None, shard_hint: str | None = None) -> Any:
        start: Any = super().pipeline
        return Pipeline(self, lambda: start(transaction, shard_hint))

    def time(self, **options: Any) -> Any:
        """One server's clock, the same for all clients."""
        return self.on_primary("rollq", lambda server: server.time(**options))

    def on_primary(self, key: str, call: Callable[["redis.Redis"], T]) -> T:
        """The call's result on the server that has the key. The call may be repeated on another server."""

        def run() -> T:
            slot = key_slot(key.encode())
            node = self.nodes_manager.get_node_from_slot(slot)
            try:
                return call(self.get_redis_connection(node))
            except (AskError, ClusterDownError, redis.ConnectionError, redis.TimeoutError):
                self.nodes_manager.initialize()
                raise

        return self.patiently(run)


class Pipeline:
    """Collects commands. `execute` sends them, and sends all of them again when the cluster changes meanwhile."""

    def __init__(self, client: ClusterClient, start: Callable[[], Any]) -> None:
        self._client, self._start = client, start
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

        return self._client.patiently(send)


def _passing(error: redis.RedisError | RedisClusterException) -> redis.RedisError | None:
    """The error to raise if it lasts; None for an error that stays as it is."""
    match error:
        case AuthenticationError():
            return None
        case redis.ConnectionError() | redis.TimeoutError() | ClusterDownError() | TryAgainError():
            return error
        case AskError():  # and MovedError: in a transaction, redis-py does not follow them to the end
            return TryAgainError(f"the slot moves: {error}")
        case ClusterError():  # redis-py followed too many redirections
            return TryAgainError("the slot moves")
        case SlotNotCoveredError():
            return redis.ConnectionError(str(error))
        case RedisClusterException() if isinstance(error.__cause__, OSError | redis.RedisError):
            return redis.ConnectionError(str(error))  # no server that redis-py knows of answers
    return None
