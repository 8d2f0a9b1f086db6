"""How safe a write is before it counts as made: in the server's memory, on a replica, or on the
server's disk.

The proof comes from the server that made the write, on the connection that carried it. This module
knows nothing of what is written.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from rollq.errors import SettingsError, Unconfirmed
from rollq.servers.cluster import ClusterClient
from rollq.servers.connection import leave_demoted


class Durability(StrEnum):
    """Where submissions, seals and acknowledgements must be before the call returns."""

    ASYNC = "async"
    """In the server's memory; a power cut or a failover may take the last second."""
    REPLICA = "replica"
    """On a replica as well: it is there after a failover to that replica."""
    FSYNC = "fsync"
    """On the server's disk: it is there after a power cut."""


CONFIRM_MS = 2000
"""Milliseconds that Redis waits for a replica or for its disk. Less than
connection.SOCKET_TIMEOUT_S.
"""
WRITE = "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], '', 'EX', 3600)"
"""A write that always happens: Redis denies a script no memory once it has deleted something."""


def confirmed(client: Any, durability: Durability, key: str, command: Sequence[Any]) -> Any:
    """The reply to the command once it is where `durability` wants it.

    `key`: a key in the slot of the command's keys, free to be written. Raises Unconfirmed when the
    command was made and is not there in time; the same may be sent again. Raises SettingsError when
    the server cannot confirm at all, and redis.ResponseError.
    """

    def on(server: Any) -> Any:
        pipe = server.pipeline(transaction=False)
        pipe.execute_command(*command)
        # A command that was made before writes nothing when it is repeated, and Redis waits only
        # for what this connection has written.
        pipe.execute_command("EVAL", WRITE, 1, key)
        if durability is Durability.REPLICA:
            pipe.execute_command("WAIT", 1, CONFIRM_MS)
        else:
            pipe.execute_command("WAITAOF", 1, 0, CONFIRM_MS)
            pipe.config_get("append*")
        reply, written, *proof = pipe.execute(raise_on_error=False)
        for error in (reply, written):
            if isinstance(error, redis.ResponseError):
                if not isinstance(client, ClusterClient):
                    leave_demoted(client, error)
                raise error
        check(server, proof)
        return reply

    check = _check_replica if durability is Durability.REPLICA else _check_disk
    return client.on_primary(key, on) if isinstance(client, ClusterClient) else on(client)


def _check_replica(server: Any, proof: list[Any]) -> None:
    if isinstance(proof[0], redis.ResponseError):
        raise proof[0]
    if int(proof[0]) < 1:
        replicas = server.info("replication").get("connected_slaves", 0)
        raise Unconfirmed(
            f"written, but no replica had it within {CONFIRM_MS / 1000:g} s (durability "
            "replica; connected replicas:"
            f" {replicas}). Start a replica, or use another durability"
        )


def _check_disk(server: Any, proof: list[Any]) -> None:
    """Raises unless the write is on the disk: the server flushes before it answers, or WAITAOF says
    so.
    """
    waited, config = proof
    if isinstance(config, NoPermissionError):
        raise SettingsError(
            "durability fsync reads from the server when it writes to its disk: give the "
            "user +config|get, or use"
            " durability async"
        ) from config
    if isinstance(config, redis.ResponseError):
        raise config
    appends, flushes = config.get("appendonly"), config.get("appendfsync")
    if appends == "yes" and flushes == "always":
        return
    if appends != "yes" or isinstance(waited, redis.ResponseError) or not _waitaof_is_true(server):
        raise SettingsError(
            "durability fsync: this server answers before it writes to its disk "
            f"(appendonly {appends}, appendfsync"
            f" {flushes}): start it with `rollq redis --fsync always` or --appendonly yes "
            "--appendfsync always, or use"
            " durability async"
        )
    if int(waited[0]) < 1:
        raise Unconfirmed(
            f"written, but not on the server's disk within {CONFIRM_MS / 1000:g} s "
            "(durability fsync). Look at its disk"
        )


def _waitaof_is_true(server: Any) -> bool:
    """Whether WAITAOF waits for the disk. Redis 7.2 to 7.4 and Valkey answer too early (redis/redis
    pull 13793).
    """
    about = server.info("server")
    return "valkey_version" not in about and int(str(about["redis_version"]).split(".")[0]) >= 8
