"""redis-py's client of a Redis Cluster, made as patient as its client of one server.

redis-py follows a slot that moves (MOVED, ASK), but it neither pauses between tries nor counts a
cluster that cannot be reached as a lost connection. This module knows nothing of what is stored.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import AskError, ClusterDownError, RedisClusterException, SlotNotCoveredError
from redis.retry import Retry

from rollq.servers.patience import Patience, Pipeline

T = TypeVar("T")


class ClusterClient(RedisCluster):
    """A client of a cluster. Safe to use from many threads. Every command of several keys needs
    them in one slot.
    """

    def __init__(
        self, hosts: Sequence[tuple[str, int]], patience: Patience, **options: Any
    ) -> None:
        """Asks a server for the slots.

        Raises redis.ConnectionError when none answers, ValueError when they are no cluster.
        """
        self.patience = patience
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
            self.patience(connect)
        except RedisClusterException as e:
            raise ValueError(str(e)) from e

    def execute_command(self, *args: Any, **options: Any) -> Any:
        command: Any = super().execute_command
        return self.patience(lambda: command(*args, **dict(options)))

    def pipeline(self, transaction: bool | None = None, shard_hint: str | None = None) -> Any:
        start: Any = super().pipeline
        return Pipeline(self.patience, lambda: start(transaction, shard_hint))

    def time(self, **options: Any) -> Any:
        """One server's clock, the same for all clients."""
        return self.on_primary("rollq", lambda server: server.time(**options))

    def on_primary(self, key: str, call: Callable[["redis.Redis"], T]) -> T:
        """The call's result on the server that has the key. The call may be repeated on another
        server.
        """
        command: Any = super().execute_command
        node_of: Any = self.get_node_from_key

        def run() -> T:
            try:
                return call(self.get_redis_connection(node_of(key)))
            except (AskError, ClusterDownError, redis.ConnectionError, redis.TimeoutError):
                with suppress(redis.RedisError, RedisClusterException):
                    command("EXISTS", key)  # redis-py finds out where the key is now
                raise

        return self.patience(run)

    def server_of(self, key: str) -> str | None:
        """The name (`host:port`) of the server that has the key; None when none has."""
        node_of: Any = self.get_node_from_key
        try:
            return str(node_of(key).name)
        except SlotNotCoveredError:
            return None

    def ask_primaries(self, call: Callable[["redis.Redis"], T]) -> dict[str, T | redis.RedisError]:
        """The call's result on each primary, by its name; of one that cannot be reached, the error.
        Each is asked once, without patience.
        """
        cluster: Any = self

        def ask(node: Any) -> T | redis.RedisError:
            try:
                return call(cluster.get_redis_connection(node))
            except (redis.ConnectionError, redis.TimeoutError) as e:
                return e

        told = {node.name: ask(node) for node in cluster.get_primaries()}
        if any(isinstance(reply, redis.RedisError) for reply in told.values()):
            with suppress(redis.RedisError, RedisClusterException):
                cluster.nodes_manager.initialize()  # a replica may have its place now
            told = {
                node.name: told[node.name] if node.name in told else ask(node)
                for node in cluster.get_primaries()
            }
        return told
