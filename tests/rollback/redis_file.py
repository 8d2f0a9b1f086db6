"""A Redis server with an append-only file that can lose its tail, and what the records of that file
are.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollq.processes.embedded_redis import command, mend
from tests.conftest import free_port, started_redis

KINDS = (
    ("ack", ("SET acked",)),
    ("submit", ("HINCRBY run",)),
    ("take", ("SADD hold",)),
    ("complete", ("RPUSH journal", "ZREM leased")),
    ("append", ("RPUSH journal",)),
    ("claim", ("ZADD leased", "ZREM queued")),
    ("expire", ("ZREM leased", "ZADD queued")),
    ("seal", ("HSET run sealed",)),
    ("reap", ("HSET run beat",)),
    ("known", ("HINCRBY count resubmitted",)),
    ("extend hold", ("ZADD held",)),
    ("wait", ("HSET waiting",)),
    ("list", ("ZADD runs",)),
    ("list", ("ZADD active",)),
    ("message", ("LPUSH rollq",)),
    ("message", ("SADD _kombu",)),
    ("send", ("ZADD queued",)),
)
"""Name of a record, and the changes that tell it. The first that fits counts."""


@dataclass(frozen=True)
class Record:
    """What Redis applies whole or not at all: one command, or all commands of one script."""

    start: int
    end: int
    changes: tuple[str, ...]

    @property
    def kind(self) -> str:
        for name, needed in KINDS:
            if all(any(change.startswith(one) for change in self.changes) for one in needed):
                return name
        return "other"


class RollbackRedis:
    """A server on one port. Its clients see it die and come back with less."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        mend(self.folder)
        self._process = started_redis(
            [*command(self.port, self.folder), "--loglevel", "warning"], self.port
        )

    def kill(self) -> None:
        """`kill -9`. What the server has written stays in its file."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(60)

    @property
    def file(self) -> Path:
        return append_only_file(self.folder)

    def records(self) -> list[Record]:
        return list(read_records(self.file.read_bytes()))

    def cut(self, offset: int) -> None:
        """Lose everything from there on. The server must be dead."""
        os.truncate(self.file, offset)


def append_only_file(folder: Path) -> Path:
    """The file that grows: Redis 7 has one beside its base, older ones have only one."""
    several = sorted(folder.glob("appendonlydir/*.incr.aof"))
    return several[-1] if several else folder / "appendonly.aof"


def read_records(data: bytes) -> Iterator[Record]:
    """The records of an append-only file. A transaction is one record, and so is a script."""
    begun, changes = -1, []
    for start, end, words in read_commands(data):
        name = words[0].upper()
        if name == b"SELECT":
            continue
        if name == b"MULTI":
            begun, changes = start, []
        elif name == b"EXEC":
            yield Record(begun, end, tuple(changes))
            begun = -1
        elif begun >= 0:
            changes.append(_change(words))
        else:
            yield Record(start, end, (_change(words),))


def read_commands(data: bytes) -> Iterator[tuple[int, int, list[bytes]]]:
    """Start, end and words of each command."""
    at = 0
    while at < len(data):
        start = at
        at, count = _line(data, at)
        words = []
        for _ in range(count):
            at, length = _line(data, at)
            words.append(data[at : at + length])
            at += length + 2
        yield start, at, words


def _line(data: bytes, at: int) -> tuple[int, int]:
    """The number in the line at this place, and the place after the line."""
    end = data.index(b"\r\n", at)
    return end + 2, int(data[at + 1 : end])


def _change(words: list[bytes]) -> str:
    """`RPUSH journal ...`: the command, the kind of key and the first field."""
    key = words[1].decode("utf-8", "replace") if len(words) > 1 else ""
    name = key.partition("}:")[2] or key.removeprefix("rollq:")
    more = words[2][:20].decode("utf-8", "replace") if len(words) > 2 else ""
    return f"{words[0].decode().upper()} {name.partition(':')[0]} {more}"
