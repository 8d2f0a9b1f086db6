"""What a Redis server did, as the server itself tells: time in scripts, commands, connections,
memory.

It looks at the server from outside and knows nothing of what is stored.
"""

import re
import socket
import threading
from collections import Counter
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import redis

SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval")
COMMAND = re.compile(rb"\+\S+ \[\d+ (\S+)\] \"(\w+)\"")
"""Sender of a command, or `lua` for one from within a script, and its name."""
WATCHERS = frozenset({"info", "monitor", "ping", "hello", "client", "select"})
"""What connections and this module send."""


class RedisMeter:
    """Reads one server. Not to be used by several threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = redis.Redis.from_url(url)

    def script_us(self) -> int:
        """Microseconds that the server has spent in scripts since it started."""
        stats = self._client.info("commandstats")
        return sum(int(stats[name]["usec"]) for name in SCRIPTS if name in stats)

    def cpu_seconds(self) -> float:
        """User and system time of the server so far."""
        used = self._client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def memory(self) -> int:
        """Bytes in use."""
        return int(self._client.info("memory")["used_memory"])

    def connections(self) -> int:
        """Number of connections that were ever accepted."""
        return int(self._client.info("stats")["total_connections_received"])

    def commands(self) -> "CommandCount":
        """Counts the commands of all clients from here on. Those within scripts do not count."""
        return CommandCount(self._url)

    def close(self) -> None:
        self._client.close()


class CommandCount:
    """A thread that reads MONITOR inside the `with` block. `total` and `by_name` are complete after
    it.
    """

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname or "127.0.0.1", where.port or 6379))
        self._thread = threading.Thread(target=self._read, name="monitor", daemon=True)
        self.by_name: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.by_name.total()

    @property
    def scripts(self) -> int:
        return self.by_name["evalsha"] + self.by_name["eval"]

    def _read(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                if (found := COMMAND.match(line)) and found[1] != b"lua":
                    self.by_name[found[2].decode().lower()] += 1

    def __enter__(self) -> "CommandCount":
        self._socket.sendall(b"MONITOR\r\n")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_WR)  # Redis sends what it has and then hangs up
        self._thread.join()
        self._socket.close()
        for name in WATCHERS:
            self.by_name.pop(name, None)
