"""Redis servers on loopback, all of them real processes: a primary with replicas, and
Sentinels.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.conftest import free_port, redis_binary, started_redis
from tests.waiting import until

HOST = "127.0.0.1"
SERVICE = "ledger"
SAFE = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "5")
"""A primary that has lost its replicas takes no writes."""


class Server:
    """One redis-server with its data in a folder of its own. It may be stopped and
    started again.
    """

    def __init__(
        self,
        folder: Path,
        settings: Sequence[str] = (),
        *,
        port: int = 0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, port or free_port()
        base = [
            "--bind",
            HOST,
            "--port",
            str(self.port),
            "--dir",
            str(folder),
            "--logfile",
            str(folder / "log"),
        ]
        plain = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        self.command = [redis_binary(), *base, *plain, *settings]
        self.start()

    def start(self) -> None:
        self.process = started_redis(self.command, self.port)
        self.client: Any = redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0))

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once, as `kill -9` does."""
        self.client.close()
        self.process.kill()
        self.process.wait(60)


class Replicated:
    """A primary and replicas of it."""

    def __init__(
        self,
        folder: Path,
        replicas: int = 1,
        settings: Sequence[str] = (),
        primary: Sequence[str] = (),
    ) -> None:
        """`settings`: of all servers; `primary`: of the primary alone."""
        quick = [
            "--repl-diskless-sync",
            "yes",
            "--repl-diskless-sync-delay",
            "0",
            "--repl-ping-replica-period",
            "1",
        ]
        self.primary = Server(folder / "primary", [*quick, *settings, *primary])
        self.servers = [self.primary]
        for number in range(replicas):
            follow = ["--replicaof", HOST, str(self.primary.port)]
            self.servers.append(Server(folder / f"replica-{number}", [*quick, *settings, *follow]))
        until(self.in_step)

    @property
    def replicas(self) -> list[Server]:
        return self.servers[1:]

    def in_step(self) -> bool:
        """Whether every replica follows the primary, which has heard it: it says so once
        a second.
        """
        known = self.primary.client.info("replication")
        heard = [
            known.get(f"slave{number}", {}).get("state") == "online"
            for number in range(len(self.replicas))
        ]
        up = [
            replica.client.info("replication")["master_link_status"] == "up"
            for replica in self.replicas
        ]
        return all(heard) and all(up)

    def close(self) -> None:
        for server in self.servers:
            server.kill()


class Sentinels(Replicated):
    """A primary, two replicas and three Sentinels that promote a replica once the primary is away
    for a second.
    """

    def __init__(
        self, folder: Path, settings: Sequence[str] = SAFE, primary: Sequence[str] = ()
    ) -> None:
        super().__init__(folder, 2, settings, primary)
        self.sentinels: list[subprocess.Popen[bytes]] = []
        self.ports = [free_port() for _ in range(3)]
        for port in self.ports:
            self._sentinel(folder / f"sentinel-{port}", port)
        until(self._complete)

    def _sentinel(self, folder: Path, port: int) -> None:
        folder.mkdir()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind {HOST}\ndir {folder}\nlogfile {folder / 'log'}\n"
            f"sentinel monitor {SERVICE} {HOST} {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\nsentinel "
            f"failover-timeout {SERVICE} 3000\n"
        )
        self.sentinels.append(started_redis([redis_binary(), str(config), "--sentinel"], port))

    def _complete(self) -> bool:
        """Whether every Sentinel knows the other two and both replicas."""
        for port in self.ports:
            with redis.Redis(port=port) as sentinel:
                seen: Any = sentinel.sentinel_master(SERVICE)
                if (seen["num-other-sentinels"], seen["num-slaves"]) != (2, 2):
                    return False
        return True

    @property
    def url(self) -> str:
        return f"sentinel://{','.join(f'{HOST}:{port}' for port in self.ports)}/0?service={SERVICE}"

    def primary_port(self) -> int:
        """The port of the primary, as the first Sentinel says."""
        with redis.Redis(port=self.ports[0]) as sentinel:
            address: Any = sentinel.sentinel_get_master_addr_by_name(SERVICE)
        return int(address[1])

    def close(self) -> None:
        for process in self.sentinels:
            process.kill()
            process.wait(60)
        super().close()
